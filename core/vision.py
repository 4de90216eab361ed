"""The only module that imports torchvision and lpips.

With a CPU build of torch, the torchvision wheel of the package index has a compiled library that cannot be loaded. Its
Python part then fails on import with "operator torchvision::nms does not exist". Declaring the schemas of the two
operators first is enough for all that we use (datasets and AlexNet's layers). If torchvision loads normally, nothing
special happens.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_library: Any = None  # keep a reference: the schemas are removed with the object


@cache
def torchvision() -> ModuleType:
    """The torchvision package, importable with any build of torch."""
    global _library
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        _library.define(schema)
    return importlib.import_module("torchvision")


def torchvision_datasets() -> ModuleType:
    """The module `torchvision.datasets`."""
    torchvision()
    return importlib.import_module("torchvision.datasets")


@cache
def lpips() -> ModuleType:
    """The lpips package (which imports torchvision itself)."""
    torchvision()
    return importlib.import_module("lpips")
