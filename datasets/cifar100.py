"""CIFAR-100, through torchvision."""

from __future__ import annotations

from typing import Any, ClassVar

from leakboard.core.vision import torchvision_datasets
from leakboard.datasets.building_blocks.torchvision import TorchvisionDataset


class Cifar100(TorchvisionDataset):
    """CIFAR-100: 60,000 colour photographs 32×32 under 100 fine labels; 10,000 are the official test set."""

    name: ClassVar[str] = "cifar100"
    mean: ClassVar[tuple[float, ...]] = (0.5071, 0.4865, 0.4409)
    std: ClassVar[tuple[float, ...]] = (0.2673, 0.2564, 0.2762)
    citation: ClassVar[str] = "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images"
    title: ClassVar[str] = "CIFAR-100"
    folder: ClassVar[str] = "cifar-100-python"
    contents: ClassVar[str] = "the files of cifar-100-python.tar.gz (https://www.cs.toronto.edu/~kriz/cifar.html)"

    @classmethod
    def source(cls) -> Any:
        """`torchvision.datasets.CIFAR100`."""
        return torchvision_datasets().CIFAR100
