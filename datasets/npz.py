"""The user's own images in one npz file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.building_blocks.npz_reader import Array, NpzReader

MIN_SIDE = 16
MAX_CLASSES = 10_000
SHAPES = "(N, H, W), (N, H, W, C) or (N, C, H, W) with H = W ≥ 16 and C = 1 or 3"


class Npz(Dataset):
    """Your own images in an npz file: `images` and `labels`, or `train_images`, `train_labels`, `test_…`.

    Images are uint8, or floats in [0, 1] (stored as 8 bits), of shape (N, H, W), (N, H, W, C) or
    (N, C, H, W), square and at least 16×16. Labels are whole numbers from 0, every class at least
    once, (N,) or (N, 1). Optional: `groups` (numbers or text; images of one group are never
    separated; with `train_images` they are `train_groups` and `test_groups`) and `class_names`. Other
    arrays are ignored. Python objects are never unpickled.
    """

    name: ClassVar[str] = "npz"
    shorthand: ClassVar[str] = "path"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)

    path: str = Field("", description="the file; `npz:FILE` sets it")
    labels_key: str = Field("", description="the array of labels, without `train_` or `test_`; default `labels`")
    groups_key: str = Field("", description="the array of groups, without `train_` or `test_`; default `groups`")
    names_key: str = Field("", description="the array of class names; default `class_names`")

    def read(self) -> ImagePool:
        """Decode the file, training images first."""
        if not self.path:
            raise UserError("The data set 'npz' needs a `path`: give it as npz:FILE.")
        file = NpzReader(Path(self.path).expanduser())
        parts = self._parts(file)
        pixels = [to_pixels(file.get(part + "images"), f"'{part}images' in {file.path}") for part in parts]
        if len({part.shape[1:] for part in pixels}) > 1:
            shapes = " and ".join(str(tuple(part.shape[1:])) for part in pixels)
            raise UserError(f"Training and test images in {file.path} must have one shape; given: {shapes}.")
        key = self.labels_key or "labels"
        given = zip(parts, pixels, strict=True)
        labels = torch.cat([to_labels(file.get(part + key), len(images), file.path) for part, images in given])
        is_test = torch.arange(len(labels)) >= len(pixels[0])
        groups = self._groups(file, parts, [len(images) for images in pixels])
        return ImagePool(torch.cat(pixels), labels, is_test, self._class_names(file, labels), groups)

    @staticmethod
    def _parts(file: NpzReader) -> list[str]:
        """Prefixes of the arrays to read: none, or `train_` and perhaps `test_`."""
        if ("images" in file) == ("train_images" in file):
            raise UserError(
                f"{file.path} must have either an array `images` or `train_images`; it holds "
                f"{', '.join(file.names) or 'nothing'}."
            )
        if "images" in file:
            return [""]
        return ["train_", "test_"] if "test_images" in file else ["train_"]

    def _groups(self, file: NpzReader, parts: list[str], counts: list[int]) -> Tensor | None:
        """Group numbers (N,), or None where the file has none and none were asked for."""
        key = self.groups_key or "groups"
        if not self.groups_key and not any(part + key in file for part in parts):
            return None
        arrays = [file.get(part + key) for part in parts]
        for array, count in zip(arrays, counts, strict=True):
            if array.shape != (count,) or array.dtype.kind not in "biuU":
                raise UserError(
                    f"The groups '{key}' in {file.path} must be ({count},) numbers or text; given: {_kind(array)}."
                )
        if len({array.dtype.kind == "U" for array in arrays}) > 1:
            raise UserError(f"The groups '{key}' in {file.path} must be all numbers or all text; given: both.")
        _, numbers = np.unique(np.concatenate(arrays), return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64))

    def _class_names(self, file: NpzReader, labels: Tensor) -> tuple[str, ...]:
        """Names from the file, else the numbers themselves; then each number must occur."""
        classes = int(labels.max()) + 1 if len(labels) else 0
        key = self.names_key or "class_names"
        if self.names_key or key in file:
            names = file.get(key)
            if names.ndim != 1 or names.dtype.kind != "U" or not classes <= len(names) <= MAX_CLASSES:
                raise UserError(
                    f"'{key}' in {file.path} must name {classes} to {MAX_CLASSES} classes; given: {_kind(names)}."
                )
            return tuple(str(name) for name in names)
        seen = set(labels.tolist())
        gap = next((label for label in range(classes) if label not in seen), None)
        if gap is not None:
            raise UserError(
                f"The labels in {file.path} must be 0 to the number of classes - 1, each at least once; "
                f"given: up to {classes - 1}, without {gap}."
            )
        return tuple(str(label) for label in range(classes))


def _kind(array: Array) -> str:
    return f"{array.dtype} {array.shape}"


def to_pixels(images: Array, what: str) -> Tensor:
    """A user's images of any allowed form as (N, C, H, W) uint8."""
    given = _kind(images)
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not MIN_SIDE <= images.shape[2] == images.shape[3]:
        raise UserError(f"The images {what} must be {SHAPES}; given: {given}.")
    if images.dtype.kind == "f":
        # written so that NaN is refused too
        if images.size and not (images.min() >= 0 and images.max() <= 1):
            raise UserError(
                f"The images {what} are floats and must lie in [0, 1]; given: {images.min()} to {images.max()}."
            )
        images = np.rint(images.astype(np.float64) * 255).astype(np.uint8)
    if images.dtype != np.uint8:
        raise UserError(f"The images {what} must be uint8 or floats in [0, 1]; given: {_kind(images)}.")
    return torch.from_numpy(np.ascontiguousarray(images))


def to_labels(labels: Array, count: int, path: Path) -> Tensor:
    """A user's labels as (N,) int64."""
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "biu":
        raise UserError(f"The labels in {path} must be ({count},) whole numbers; given: {_kind(labels)}.")
    if count and (int(labels.min()) < 0 or int(labels.max()) >= MAX_CLASSES):
        given = f"{labels.min()} to {labels.max()}"
        raise UserError(f"The labels in {path} must be 0 to {MAX_CLASSES - 1}; given: {given}.")
    return torch.from_numpy(labels.reshape(count).astype(np.int64))
