"""Gradient pruning, a common heuristic."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field

from leakboard.defenses.base import Defense, Gradient, Transform
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public


class GradPrune(Defense):
    """Every client sends only the largest values of its gradient and sets the rest to zero.

    In each layer the share `ratio` of values with the smallest magnitude becomes zero. This is a heuristic: it promises
    nothing, and an attacker sees which values are zero.
    """

    name: ClassVar[str] = "grad-prune"
    citation: ClassVar[str] = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, section 5.2 (compression)"
    claim: ClassVar[str] = "Reconstruction fails once enough of the gradient is missing (a heuristic, no guarantee)."

    ratio: float = Field(0.9, ge=0, lt=1, description="share of values that are set to zero in every layer")

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: keep the largest values of every layer."""
        return {name: pruned(value, self.ratio) for name, value in gradient.items()}

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """Set the same values of a candidate's gradient to zero; only the zeros of a single client are visible."""
        return keeping_the_same(observed)


def keeping_the_same(observed: Gradient) -> Transform | None:
    """Zero wherever an observed gradient of a single client is zero; None for a mean over several."""
    if observed.clients != 1:
        return None
    kept = {name: value != 0 for name, value in observed.values.items()}
    return lambda candidates: {name: value * kept[name].to(value) for name, value in candidates.items()}


def pruned(value: torch.Tensor, ratio: float) -> torch.Tensor:
    """The tensor with its floor(ratio n) values of smallest magnitude set to zero.

    >>> pruned(torch.tensor([0.1, -3.0, 2.0, 0.0]), 0.5)
    tensor([ 0., -3.,  2.,  0.])
    """
    drop = math.floor(ratio * value.numel())
    found = value.clone()
    found.view(-1)[value.abs().flatten().argsort(stable=True)[:drop]] = 0
    return found
