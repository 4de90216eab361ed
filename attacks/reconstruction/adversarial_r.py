"""The attack of a server that draws R to its own advantage."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from leakboard.attacks.base import Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.analytic import Analytic
from leakboard.attacks.reconstruction.noise_aware import NoiseAware
from leakboard.core.errors import Unsupported


class AdversarialR(NoiseAware):
    """The attack of a server that chose a small R for one layer (`Defense.deviate` of mp-dp and its ablations).

    The server multiplies every r by c and divides every s by c. The clients' noise on the first layer's gradient then
    shrinks by c (with 1 / c: the noise on the last layer's gradient), while the transitional layers, 1 / (r s), stay
    the same. A fully connected first layer then yields its records in closed form (`analytic`). A clean last layer
    yields label and features, and `noise-aware` gives it the weight it deserves. Clients of the scheme check nothing. A
    client that checked the sizes of the first and the last layer would notice (`skewed`).
    """

    name: ClassVar[str] = "adversarial-r"
    citation: ClassVar[str] = "LeakBoard: R of Yang et al. is the server's to choose, and clients check nothing"
    threats: ClassVar[tuple[str, ...]] = ("server:active",)

    samples: int = Field(200_000, ge=1, description="how many row sets the closed form may draw per batch")

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Use the closed form if it applies, otherwise the likelihood."""
        try:
            return Analytic(samples=self.samples).reconstruct(knowledge, task)
        except Unsupported:
            return super().reconstruct(knowledge, task)
