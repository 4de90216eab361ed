"""Defenses as a third party would write them: `protect` alone, and no hook that an attack could imitate."""

from __future__ import annotations

from typing import ClassVar

from leakboard.defenses.base import Defense
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters


class ClippedAndRounded(Defense):
    """Every client clips the values of its gradient, then rounds them."""

    name: ClassVar[str] = "clipped-and-rounded"

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Values in [-0.02, 0.02], in steps of 0.005: nine different ones."""
        return {name: value.clamp(-0.02, 0.02).div(0.005).round().mul(0.005) for name, value in gradient.items()}


class Reversed(Defense):
    """Every client scales each tensor by a public factor and sends its values in reverse order."""

    name: ClassVar[str] = "reversed"

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Tensor i times i + 1, last value first."""
        pairs = enumerate(gradient.items(), start=1)
        return {name: (i * value).flatten().flip(0).view_as(value) for i, (name, value) in pairs}
