"""The paper's Test-MSE: squared error in the space that the model sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from leakboard.metrics.base import Aggregate, ReconstructionMetric, ReconstructionTruth, Score
from leakboard.metrics.building_blocks.images import check_pair, score_images


def normalised_mse(reconstruction: Tensor, original: Tensor, std: Sequence[float]) -> Tensor:
    """Mean squared error of each image after normalisation, not clamped.

    MSE_i = mean over channels c and pixels of ((reconstruction_i,c - original_i,c) / std_c)^2

    The mean of the normalisation cancels. Values above 1 are possible, because std is about 0.25 for photos.

    Shapes: both (N, C, H, W) in image units, matched, std of length C; returns float64 (N,).
    Definition: the "MSE" of invertinggradients' `reconstruct_image.py` (Geiping et al. 2020).

    >>> normalised_mse(torch.full((1, 1, 8, 8), 1.5), torch.full((1, 1, 8, 8), 0.5), [0.25]).tolist()
    [16.0]
    """
    check_pair(reconstruction, original)
    scale = torch.tensor(list(std), dtype=torch.float64, device=original.device)
    if len(scale) != original.shape[1] or not (scale > 0).all():
        raise ValueError(f"std must be a positive number for each of {original.shape[1]} channels; given: {list(std)}.")
    difference = reconstruction.detach().double() - original.double()
    return (difference / scale[:, None, None]).square().mean(dim=(1, 2, 3))


class NormalisedMse(ReconstructionMetric):
    """The paper's Test-MSE: in the normalised space that the model sees, not clamped.

    Definition: `metrics.normalised_mse.normalised_mse`.
    """

    name: ClassVar[str] = "test_mse"
    title: ClassVar[str] = "Test-MSE"
    aggregate: ClassVar[Aggregate] = "mean"
    tolerance: ClassVar[float] = 0.2
    citation: ClassVar[str] = "Geiping et al., Inverting Gradients, NeurIPS 2020"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Mean of the images' normalised MSE."""
        return score_images(lambda ours, true: normalised_mse(ours, true, truth.std), truth)
