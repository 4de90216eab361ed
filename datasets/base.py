"""What a dataset is to the rest of LeakBoard: labelled images and the parts into which the protocol splits them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.core.plugins import Plugin


@dataclass(frozen=True)
class LabelledImages:
    """Images (N, C, H, W), float32 in [0, 1], and their labels (N,), int64."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[0] != self.labels.shape[0]:
            raise ValueError(f"images {tuple(self.images.shape)} do not fit labels {tuple(self.labels.shape)}")

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def select(self, indices: Tensor) -> LabelledImages:
        """A copy of the rows at these indices (N',), in that order; it shares no memory with the rest."""
        return LabelledImages(self.images[indices].clone(), self.labels[indices].clone())


@dataclass(frozen=True)
class ImagePool:
    """A loaded dataset: decoded pixels as uint8, so that 60,000 images need little memory.

    `pixels` (N, C, H, W) uint8, `labels` (N,) int64. `is_test` (N,) bool marks the official test set (all False if
    there is none). `groups` (N,) int64 says which images belong together (one patient) and must not be separated, or is
    None.
    """

    pixels: Tensor
    labels: Tensor
    is_test: Tensor
    class_names: tuple[str, ...]
    groups: Tensor | None = None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of one image."""
        channels, height, width = self.pixels.shape[1:]
        return int(channels), int(height), int(width)

    def take(self, indices: Tensor) -> LabelledImages:
        """Float images in [0, 1] and labels at these indices; a copy."""
        return LabelledImages(self.pixels[indices].float() / 255.0, self.labels[indices].clone())

    def digest(self) -> str:
        """SHA-256 over shape, decoded pixels and labels in index order: the same for every source of the data."""
        shape = ",".join(str(size) for size in self.pixels.shape)
        sha = hashlib.sha256(shape.encode())
        sha.update(self.pixels.contiguous().numpy().tobytes())
        sha.update(self.labels.to(torch.int64).contiguous().numpy().tobytes())
        return sha.hexdigest()

    def structure(self) -> str:
        """SHA-256 over what determines the splits besides pixels and labels: test set, groups, class names."""
        sha = hashlib.sha256(repr(self.class_names).encode())
        sha.update(self.is_test.to(torch.uint8).contiguous().numpy().tobytes())
        if self.groups is not None:
            sha.update(self.groups.to(torch.int64).contiguous().numpy().tobytes())
        return sha.hexdigest()

    def with_labels(self, labels: Tensor) -> ImagePool:
        """The same images with other labels."""
        return replace(self, labels=labels)


class Dataset(Plugin):
    """Base of all datasets: one file each; `read()` returns the decoded images."""

    kind: ClassVar[str] = "dataset"
    #: per-channel mean and standard deviation for normalising the models' inputs, in [0, 1] units; empty if the images
    #: are the user's own: their statistics are private, and the number of channels is not known in advance
    mean: ClassVar[tuple[float, ...]] = ()
    std: ClassVar[tuple[float, ...]] = ()

    label_noise: float = Field(
        0.0, ge=0, le=1, description="share of training labels replaced by a random other class (makes models overfit)"
    )

    @abstractmethod
    def read(self) -> ImagePool:
        """Return the images; a missing or broken source raises a `UserError` that says which file belongs where."""

    @classmethod
    def normalisation(cls, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation for images with this many channels; 0.5 and 0.25 if none are published."""
        if not cls.mean:
            return (0.5,) * channels, (0.25,) * channels
        if len(cls.mean) != channels or len(cls.std) != channels:
            raise ValueError(f"{cls.name} has {channels} channels but mean {cls.mean} and std {cls.std}")
        return cls.mean, cls.std
