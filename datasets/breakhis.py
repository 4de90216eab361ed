"""BreaKHis, read from the folder as it is distributed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.building_blocks.images import decode_all, existing_folder
from leakboard.datasets.building_blocks.npz_reader import NpzReader
from leakboard.datasets.building_blocks.torchvision import data_root
from leakboard.datasets.splits import make_splits

#: SOB_<benign or malignant>_<type>-<year>-<case><slides>-<magnification>-<number>.png
FILE_NAME = re.compile(r"SOB_([BM])_([A-Z]+)-(\d+)-(\d+)([A-Z]*)-(\d+)-(\d+)\.png", re.IGNORECASE)
TYPES = {
    "A": "adenosis",
    "F": "fibroadenoma",
    "PT": "phyllodes tumor",
    "TA": "tubular adenoma",
    "DC": "ductal carcinoma",
    "LC": "lobular carcinoma",
    "MC": "mucinous carcinoma",
    "PC": "papillary carcinoma",
}


class Slide(NamedTuple):
    """The information in the name of one picture."""

    path: Path
    malignant: bool
    type: str
    patient: str


class BreakHis(Dataset):
    """BreaKHis: microscope pictures of breast tumours, 700×460 resized to 32×32; by default patients are kept apart.

    `groups` are patients: the year and the number of the case, without the letters that count its
    slides (14-22549AB and 14-22549CD are one patient), so by default no patient is on both sides of a split.
    Pictures that appear under two types (23 pairs at 400×, all of case 14-13412) are left out under
    both, because the right label is unknown. Of other exact copies one is kept. There is no
    official test set. The mean and standard deviation are those of 400×.

    With `patients: shared` only the test set has its own patients, always the same fifth. Members, non-members and
    auxiliary pictures come from the same other patients. Membership then refers to a picture: between pictures of
    different patients it could be inferred without any model. Pictures of one slide are similar, so membership is
    harder to infer than among pictures of different patients.
    """

    name: ClassVar[str] = "breakhis"
    mean: ClassVar[tuple[float, ...]] = (0.7565, 0.5904, 0.7431)
    std: ClassVar[tuple[float, ...]] = (0.1282, 0.1871, 0.1037)
    citation: ClassVar[str] = (
        "Spanhol et al. 2016, A Dataset for Breast Cancer Histopathological Image Classification, IEEE TBME 63(7)"
    )
    shorthand: ClassVar[str] = "root"
    location_fields: ClassVar[tuple[str, ...]] = ("root",)

    root: str = Field(
        "",
        description="the unpacked folder BreaKHis_v1 (or any folder above the pictures), or an npz file of the resized "
        "pictures (`images`, `filename`); default $LEAKBOARD_DATA, else ~/.cache/leakboard",
    )
    magnification: Literal[40, 100, 200, 400] = 400
    target: Literal["benign-malignant", "types"] = "benign-malignant"
    patients: Literal["apart", "shared"] = Field(
        "apart", description="shared: members and non-members are pictures of the same patients, the test set is not"
    )
    size: int = Field(32, ge=16, le=224, description="side of the pictures after resizing, in pixels")

    def read(self) -> ImagePool:
        """Decode the pictures of one magnification, in the order of their names."""
        slides, pixels = self._pictures()
        kept = unambiguous(pixels, [slide.type for slide in slides])
        chosen = [slides[i] for i in kept]
        codes = list(TYPES)
        by_type = self.target == "types"
        labels = [codes.index(slide.type) if by_type else int(slide.malignant) for slide in chosen]
        patients = sorted({slide.patient for slide in chosen})
        apart = ImagePool(
            pixels[torch.tensor(kept, dtype=torch.int64)],
            torch.tensor(labels, dtype=torch.int64),
            torch.zeros(len(chosen), dtype=torch.bool),
            tuple(TYPES.values()) if by_type else ("benign", "malignant"),
            torch.tensor([patients.index(slide.patient) for slide in chosen], dtype=torch.int64),
        )
        return apart if self.patients == "apart" else _shared(apart)

    def _pictures(self) -> tuple[list[Slide], Tensor]:
        """The slides of the wanted magnification and their pixels (N, 3, size, size)."""
        root = data_root(self.root)
        if root.suffix == ".npz":
            return self._resized(NpzReader(root))
        top = existing_folder(str(root), "The `root` of the data set 'breakhis'")
        slides = self._wanted(top.rglob("*.png"), top)
        return slides, decode_all([slide.path for slide in slides], self.size, 3)

    def _resized(self, file: NpzReader) -> tuple[list[Slide], Tensor]:
        """Pictures that are already resized: `images` (N, size, size, 3) uint8, and the `filename` of each."""
        images, names = file.get("images"), [Path(str(name)) for name in file.get("filename")]
        if images.dtype != np.uint8 or images.shape != (len(names), self.size, self.size, 3):
            raise UserError(
                f"The array 'images' in {file.path} must be uint8 of shape ({len(names)}, {self.size}, {self.size}, 3)"
                f", one for each `filename`; given: {images.dtype} {images.shape}."
            )
        places = {name: place for place, name in enumerate(names)}
        if len(places) < len(names):
            raise UserError(f"The array 'filename' in {file.path} must name each picture once; given: a name twice.")
        slides = self._wanted(names, file.path)
        order = [places[slide.path] for slide in slides]
        return slides, torch.from_numpy(images[order].transpose(0, 3, 1, 2).copy())

    def _wanted(self, paths: Iterable[Path], where: Path) -> list[Slide]:
        slides = find_slides(paths, self.magnification)
        if not slides:
            raise UserError(
                f"{where} holds no pictures of BreaKHis at {self.magnification}x: put the unpacked BreaKHis_v1 there, "
                f"with files such as SOB_B_A-14-22549AB-{self.magnification}-001.png."
            )
        return slides


def _shared(pool: ImagePool) -> ImagePool:
    """The same pictures with the test set that keeping patients apart gives with seed 0, and no groups in the rest."""
    is_test = pool.is_test.clone()
    is_test[make_splits(pool, seed=0, clients=1).test] = True
    return replace(pool, is_test=is_test, groups=None)


def find_slides(paths: Iterable[Path], magnification: int) -> list[Slide]:
    """The pictures of one magnification among these files, by file name."""
    found: list[Slide] = []
    for path in paths:
        match = FILE_NAME.fullmatch(path.name)
        if match is None or int(match[6]) != magnification:
            continue
        code = match[2].upper()
        if code not in TYPES:
            raise UserError(f"The picture {path} is of the unknown type '{code}': allowed are {', '.join(TYPES)}.")
        found.append(Slide(path, match[1].upper() == "M", code, f"{match[3]}-{match[4]}"))
    return sorted(found, key=lambda slide: (slide.path.name, str(slide.path)))


def unambiguous(pixels: Tensor, types: list[str]) -> list[int]:
    """Indices of the pictures (N, C, H, W) to keep: one per content, and none whose copies differ in type.

    Pictures are compared by decoded pixels, so that a copy that was saved again counts as well.
    """
    same: defaultdict[bytes, list[int]] = defaultdict(list)
    for index, picture in enumerate(pixels):
        same[picture.numpy().tobytes()].append(index)
    return sorted(copies[0] for copies in same.values() if len({types[i] for i in copies}) == 1)
