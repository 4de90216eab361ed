"""Handwritten digits that come with scikit-learn: real images with no download."""

from __future__ import annotations

from typing import ClassVar

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

from leakboard.datasets.base import Dataset, ImagePool

SIDE = 32
#: the source measures ink from 0 to 16
LEVELS = 16


class Digits(Dataset):
    """Handwritten digits of scikit-learn: 1,797 images, originally 8×8, upsampled to 32×32.

    They are upsampled (bilinear) so that all models and metrics apply. They are therefore smooth: a
    reconstruction needs only 64 right numbers. There is no official test set.
    """

    name: ClassVar[str] = "digits"
    mean: ClassVar[tuple[float, ...]] = (0.3052,)
    std: ClassVar[tuple[float, ...]] = (0.3236,)
    citation: ClassVar[str] = (
        "Alpaydin & Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository"
    )

    def read(self) -> ImagePool:
        """1,797 images (N, 1, 32, 32); none is marked as test."""
        source = load_digits()
        # 255/16 and the weights of a 4-fold upsampling are dyadic, so float32 is exact here and the
        # checksum is the same on every machine
        ink = torch.tensor(source.images, dtype=torch.float32).unsqueeze(1) * (255 / LEVELS)
        pixels = interpolate(ink, size=(SIDE, SIDE), mode="bilinear", align_corners=False).round().to(torch.uint8)
        labels = torch.tensor(source.target, dtype=torch.int64)
        names = tuple(str(digit) for digit in source.target_names)
        return ImagePool(pixels, labels, torch.zeros(len(labels), dtype=torch.bool), names)
