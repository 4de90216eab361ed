"""Handwritten digits that come with scikit-learn: real images with no download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
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
        ink, digits = _source()
        # 255/16 and the weights of a 4-fold upsampling are dyadic, so float32 is exact here and the
        # checksum is the same on every machine
        scaled = torch.tensor(ink, dtype=torch.float32).unsqueeze(1) * (255 / LEVELS)
        pixels = interpolate(scaled, size=(SIDE, SIDE), mode="bilinear", align_corners=False).round().to(torch.uint8)
        labels = torch.tensor(digits, dtype=torch.int64)
        names = tuple(str(digit) for digit in range(10))
        return ImagePool(pixels, labels, torch.zeros(len(labels), dtype=torch.bool), names)


def _source() -> tuple[np.ndarray, np.ndarray]:
    """Ink (N, 8, 8) and digits (N,): the file that `sklearn.datasets.load_digits` reads.

    Importing `sklearn.datasets` takes as long as most of a second run of a finished suite.
    """
    found = find_spec("sklearn")
    assert found is not None
    assert found.submodule_search_locations
    file = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as text:
        table = np.loadtxt(text, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
