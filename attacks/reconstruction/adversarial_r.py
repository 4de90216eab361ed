"""What a server gets that draws R to its own advantage."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from leakboard.attacks.base import Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.analytic import Analytic
from leakboard.attacks.reconstruction.noise_aware import NoiseAware
from leakboard.core.errors import Unsupported


class AdversarialR(NoiseAware):
    """The attack of a server that chose a small R for one layer (`Defense.deviate` of mp-dp and its ablations).

    Every r times c and every s over c: the clients' noise on the first layer's gradient shrinks by c, or with 1 / c
    that on the last one's, while the transitional layers, 1 / (r s), show what they would anyway. A fully connected
    first layer then gives its records in closed form (`analytic`); a clean last layer gives label and features, and
    `noise-aware` weighs it as it deserves. Clients of the scheme check nothing; one that looked at how large the first
    and the last layer are would notice (`skewed`).
    """

    name: ClassVar[str] = "adversarial-r"
    citation: ClassVar[str] = "LeakBoard: R of Yang et al. is the server's to choose, and clients check nothing"
    threats: ClassVar[tuple[str, ...]] = ("server:active",)

    samples: int = Field(200_000, ge=1, description="row sets that the closed form draws, at most, for one batch")

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """By the closed form where there is one."""
        try:
            return Analytic(samples=self.samples).reconstruct(knowledge, task)
        except Unsupported:
            return super().reconstruct(knowledge, task)
