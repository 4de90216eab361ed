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


#: shapes of the kernels of AlexNet, by layer: (out, in, height, width)
KERNELS = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3)}


def random_features(seed: int = 1) -> dict[str, Tensor]:
    """Weights of AlexNet's form that stand in for the true ones, which are not here."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for layer, shape in KERNELS.items():
        scale = (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        state[f"features.{layer}.weight"] = torch.randn(shape, generator=generator) * scale
        state[f"features.{layer}.bias"] = torch.randn(shape[0], generator=generator) * 0.01
    return state
