"""Sign compression, a heuristic."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.defenses.base import Gradient, Transform
from leakboard.defenses.building_blocks.error_feedback import ErrorFeedback
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public


class Sign(ErrorFeedback):
    """Every client sends the signs of its gradient and one size per layer; errors are sent later.

    C(p) = (||p||_1 / d) sign(p) for each layer of d values. This is a heuristic: an attacker who applies the same to
    its candidates (`mimic`) matches all signs.
    """

    name: ClassVar[str] = "sign"
    citation: ClassVar[str] = (
        "Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019"
    )
    claim: ClassVar[str] = (
        "None about privacy: papers compare with it because one bit per value seems to hide the rest."
    )

    def compressed(self, value: Tensor) -> Tensor:
        """Signs times the mean magnitude."""
        return value.sign() * value.abs().mean()

    def wire_bytes(self, sent: Parameters) -> int:
        """One bit per value and one number per layer."""
        return sum(-(-value.numel() // 8) + value.element_size() for value in sent.values())

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """The same signs and sizes; derivatives ignore the compression (straight-through).

        What a client kept from former rounds is unknown, so this is exact only while it has kept nothing: with
        `feedback: false`, or in the training step of its first round. Probes run after that step.
        """
        return lambda candidates: {name: _signed(value) for name, value in candidates.items()}


def _signed(values: Tensor) -> Tensor:
    """N tensors (N, *shape), each compressed by itself."""
    size = values.abs().flatten(1).mean(1).view(-1, *([1] * (values.ndim - 1)))
    return values + (values.sign() * size - values).detach()
