"""Top-k compression, a heuristic."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from leakboard.defenses.base import Gradient, Transform
from leakboard.defenses.building_blocks.error_feedback import ErrorFeedback
from leakboard.defenses.grad_prune import keeping_the_same, pruned
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public


class TopK(ErrorFeedback):
    """Every client sends the largest values of each layer; what it left out is added to its next gradient.

    grad-prune forgets the rest; here it accumulates until it is large enough to be sent. So compression can be much
    stronger at the same accuracy. This is a heuristic: an attacker sees which values were sent (`mimic`).
    """

    name: ClassVar[str] = "top-k"
    citation: ClassVar[str] = "Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018"
    claim: ClassVar[str] = "None about privacy: papers compare with it because little of each gradient is sent."

    ratio: float = Field(0.99, ge=0, lt=1, description="share of values that are not sent, in every layer")

    def compressed(self, value: Tensor) -> Tensor:
        """The largest values of a layer."""
        return pruned(value, self.ratio)

    def wire_bytes(self, sent: Parameters) -> int:
        """A value and an index of four bytes for each value that is sent."""
        return sum(int(value.count_nonzero()) * (value.element_size() + 4) for value in sent.values())

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """Set the same values of a candidate's gradient to zero; only the zeros of a single client are visible.

        The values that were sent include what the client kept from former rounds, which is unknown (`ErrorFeedback`).
        """
        return keeping_the_same(observed)
