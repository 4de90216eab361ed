"""CIFAR-10, through torchvision."""

from __future__ import annotations

from typing import Any, ClassVar

from leakboard.core.vision import torchvision_datasets
from leakboard.datasets.building_blocks.torchvision import TorchvisionDataset


class Cifar10(TorchvisionDataset):
    """CIFAR-10: 60,000 colour photographs 32×32 of 10 kinds of things; 10,000 are the official test set."""

    name: ClassVar[str] = "cifar10"
    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)
    citation: ClassVar[str] = "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images"
    title: ClassVar[str] = "CIFAR-10"
    folder: ClassVar[str] = "cifar-10-batches-py"
    contents: ClassVar[str] = "the files of cifar-10-python.tar.gz (https://www.cs.toronto.edu/~kriz/cifar.html)"

    @classmethod
    def source(cls) -> Any:
        """`torchvision.datasets.CIFAR10`."""
        return torchvision_datasets().CIFAR10
