"""Peak signal-to-noise ratio per image, capped."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.metrics.base import Aggregate, ReconstructionMetric, ReconstructionTruth, Score
from leakboard.metrics.building_blocks.images import score_images, squared_error

#: 60 dB is an error of 1/1000 a pixel, under the step of 8-bit images (1/255): better is not visible, and
#: without a cap one perfect image would make the mean of a batch infinite
CAP_DB = 60.0


def psnr(reconstruction: Tensor, original: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image, in dB, at most 60.

    PSNR_i = min(60, 10 log10(1 / MSE_i)), with MSE_i of the images clamped to [0, 1]

    The mean is taken over these values; pooling the MSE of a batch first gives a different, lower number.

    Shapes: both (N, C, H, W), matched; returns float64 (N,).
    Citation: Huynh-Thu and Ghanbari 2008; the mean over images as in Geiping et al. 2020.

    >>> import torch
    >>> [round(value, 2) for value in psnr(torch.full((1, 3, 8, 8), 0.6), torch.full((1, 3, 8, 8), 0.5)).tolist()]
    [20.0]
    """
    floor = 10 ** (-CAP_DB / 10)
    return (-10 * squared_error(reconstruction, original).clamp(min=floor).log10()).clamp(0, CAP_DB)


class Psnr(ReconstructionMetric):
    """Peak signal-to-noise ratio per image, capped at 60 dB, then the mean; not pooled.

    Definition: `metrics.psnr.psnr`.
    """

    name: ClassVar[str] = "psnr"
    title: ClassVar[str] = "PSNR"
    digits: ClassVar[int] = 2
    aggregate: ClassVar[Aggregate] = "mean"
    tolerance: ClassVar[float] = 1.0
    citation: ClassVar[str] = "Huynh-Thu and Ghanbari, Scope of validity of PSNR, Electronics Letters 2008"
    unit: ClassVar[str] = "dB"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, CAP_DB)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Mean of the images' PSNR."""
        return score_images(psnr, truth)
