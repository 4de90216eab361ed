"""The user's own pictures, one folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field

from leakboard.core.errors import UserError, unknown_name
from leakboard.core.seeds import natural_order
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.building_blocks.images import SUFFIXES, decode_all, existing_folder

Labelled = tuple[Path, int]


class Folder(Dataset):
    """Your own pictures: DIR/<class>/*.png or .jpg, or DIR/train/<class>/… and DIR/test/<class>/….

    Every picture is resized to `size`×`size`. Classes and files are in natural order (`img2` before
    `img10`). Pictures in DIR/test are the official test set. Without that folder, a test set is split off.
    """

    name: ClassVar[str] = "folder"
    shorthand: ClassVar[str] = "path"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)

    path: str = Field("", description="the folder; `folder:DIR` sets it")
    size: int = Field(32, ge=16, le=224, description="side of the pictures after resizing, in pixels")
    channels: Literal[1, 3] = Field(3, description="3 for colour, 1 for grey")

    def read(self) -> ImagePool:
        """Decode all pictures, the training ones first."""
        top = existing_folder(self.path, "The `path` of the data set 'folder'")
        train_folder, test_folder = top / "train", top / "test"
        split = train_folder.is_dir() and bool(subfolders(train_folder))
        classes = subfolders(train_folder if split else top)
        if not classes:
            raise UserError(f"{top} holds no classes: put pictures into {top}/<class>/, one folder per class.")
        train = find_pictures(train_folder if split else top, classes)
        test = find_pictures(test_folder, classes, optional=True) if split and test_folder.is_dir() else []
        pixels = decode_all([path for path, _ in train + test], self.size, self.channels)
        labels = torch.tensor([label for _, label in train + test], dtype=torch.int64)
        return ImagePool(pixels, labels, torch.arange(len(labels)) >= len(train), tuple(classes))


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, without hidden ones, in natural order."""
    return natural_order(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def find_pictures(folder: Path, classes: list[str], optional: bool = False) -> list[Labelled]:
    """Pictures under `folder`/<class>/ and their labels; only if `optional` may a class have none."""
    found: list[Labelled] = []
    for name in subfolders(folder):
        if name not in classes:
            raise unknown_name("training class", name, classes)
        names = (entry.name for entry in (folder / name).iterdir())
        pictures = natural_order(n for n in names if n.lower().endswith(SUFFIXES) and not n.startswith("."))
        if not pictures and not optional:
            raise UserError(
                f"The class folder {folder / name} has no pictures: allowed are {', '.join(SUFFIXES)} files."
            )
        found += [(folder / name / picture, classes.index(name)) for picture in pictures]
    return found
