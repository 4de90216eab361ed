"""Fashion-MNIST, through torchvision."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from leakboard.core.vision import torchvision_datasets
from leakboard.datasets.building_blocks.torchvision import TorchvisionDataset

#: black pixels added on each side, so that 28×28 becomes the 32×32 of the others
MARGIN = 2


class FashionMnist(TorchvisionDataset):
    """Fashion-MNIST: 70,000 grey pictures of clothes, 28×28 padded to 32×32; 10,000 are the official test set."""

    name: ClassVar[str] = "fashion-mnist"
    # the published 0.2860 and 0.3530 are for 28×28; these are for the padded pictures
    mean: ClassVar[tuple[float, ...]] = (0.2190,)
    std: ClassVar[tuple[float, ...]] = (0.3318,)
    citation: ClassVar[str] = "Xiao, Rasul & Vollgraf 2017, Fashion-MNIST, arXiv:1708.07747"
    title: ClassVar[str] = "Fashion-MNIST"
    folder: ClassVar[str] = "FashionMNIST/raw"
    contents: ClassVar[str] = (
        "the four unpacked idx files of Fashion-MNIST (https://github.com/zalandoresearch/fashion-mnist)"
    )

    @classmethod
    def source(cls) -> Any:
        """`torchvision.datasets.FashionMNIST` without its legacy cache, which it would read with `torch.load`."""
        # the name must stay: torchvision derives the folder's name from it
        return type("FashionMNIST", (torchvision_datasets().FashionMNIST,), {"_check_legacy_exist": lambda _: False})

    @staticmethod
    def to_pixels(data: Any) -> Tensor:
        """torchvision's tensor (N, 28, 28) as (N, 1, 32, 32) uint8."""
        return pad(torch.as_tensor(data, dtype=torch.uint8).unsqueeze(1), (MARGIN,) * 4)
