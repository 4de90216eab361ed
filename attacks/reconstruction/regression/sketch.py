"""Gradients as short feature vectors: a count sketch of every tensor."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leakboard.federation.payload import Parameters


class Sketch:
    """A random linear map of gradients that keeps inner products on average, tensor by tensor.

    The n values of a tensor are multiplied by random signs, put into random order, and added up in b bins of equal size
    (count sketch, Charikar et al. 2002). For sketches s(g) this gives E <s(g), s(h)> = <g, h>. A tensor with at most b
    values is kept as it is.
    """

    def __init__(self, like: Mapping[str, Tensor], bins: int, random: torch.Generator) -> None:
        self.bins = bins
        self._order: dict[str, Tensor] = {}
        self._signs: dict[str, Tensor] = {}
        for name, value in like.items():
            count = value.numel()
            if count > bins:
                padded = -(-count // bins) * bins  # the last row is filled with values times 0
                order = torch.randperm(padded, generator=random)
                signs = torch.randint(2, (padded,), generator=random).float() * 2 - 1
                self._signs[name] = torch.where(order < count, signs, 0.0)
                self._order[name] = order.clamp(max=count - 1)
        #: how many values each tensor has, and how many features
        self.count = {name: value.numel() for name, value in like.items()}
        self.sizes = {name: min(value.numel(), bins) for name, value in like.items()}

    def __call__(self, gradients: Parameters) -> Tensor:
        """Features (N, sum of sizes) in float32 of N gradients (N, *shape)."""
        return torch.cat([self._one(name, gradients[name].flatten(1).float()) for name in self.sizes], dim=1)

    def _one(self, name: str, rows: Tensor) -> Tensor:
        if name not in self._order:
            return rows
        return (rows[:, self._order[name]] * self._signs[name]).view(len(rows), -1, self.bins).sum(1)
