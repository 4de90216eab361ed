"""Shared makings of the metric tests."""

from __future__ import annotations

import torch
from torch import Tensor

from leakboard.metrics.base import MembershipTruth, ReconstructionTruth


def images(count: int = 3, channels: int = 3, size: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, size, size, generator=generator)


def truth(reconstruction: Tensor, original: Tensor, decoys: Tensor | None = None) -> ReconstructionTruth:
    channels = original.shape[1]
    logits = [images.flatten(1)[:, :5] for images in (reconstruction, original)]
    return ReconstructionTruth(
        reconstruction, original, (0.5,) * channels, (0.25,) * channels, logits[0], logits[1], decoys
    )


def membership(scores: list[float], members: list[bool], threshold: float = 0.5) -> MembershipTruth:
    values = torch.tensor(scores, dtype=torch.float64)
    return MembershipTruth(values, values >= threshold, torch.tensor(members, dtype=torch.bool))
