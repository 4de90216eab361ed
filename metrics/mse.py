"""Mean squared error of images in [0, 1]."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.metrics.base import Aggregate, ReconstructionMetric, ReconstructionTruth, Score
from leakboard.metrics.building_blocks.images import score_images, squared_error


def mse(reconstruction: Tensor, original: Tensor) -> Tensor:
    """Mean squared error of each image.

    MSE_i = mean over channels and pixels of (clamp(reconstruction_i, 0, 1) - original_i)^2

    Shapes: both (N, C, H, W), matched; returns float64 (N,).
    Definition: as in breaching's `report` (Geiping et al. 2020), after de-normalising and clamping.

    >>> import torch
    >>> mse(torch.full((1, 3, 8, 8), 0.75), torch.full((1, 3, 8, 8), 0.25)).tolist()
    [0.25]
    """
    return squared_error(reconstruction, original)


class Mse(ReconstructionMetric):
    """Mean squared error in [0, 1] per image, then the mean.

    Definition: `metrics.mse.mse`.
    """

    name: ClassVar[str] = "mse"
    title: ClassVar[str] = "MSE"
    digits: ClassVar[int] = 4
    aggregate: ClassVar[Aggregate] = "mean"
    tolerance: ClassVar[float] = 0.01
    citation: ClassVar[str] = "Geiping et al., Inverting Gradients, NeurIPS 2020"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Mean of the images' MSE."""
        return score_images(mse, truth)
