"""Data sets of Hugging Face, through their library `datasets`, which is installed apart."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError, unknown_name
from leakboard.core.seeds import natural_order
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.building_blocks.images import MAX_BYTES

#: names under which data sets usually keep their images and labels, the first that is there is taken
IMAGE_NAMES, LABEL_NAMES = ("image", "img", "images", "picture"), ("label", "labels", "fine_label", "class")


class HuggingFace(Dataset):
    """A data set of images from Hugging Face: `hf:NAME`, or `hf:FOLDER` that `save_to_disk` wrote.

    Every picture is resized to `size`×`size`. The split `test` is the official test set; where there is none, a test
    set is split off. Labels are class numbers or texts. It needs the library `datasets`, and `--download` for what is
    not in its cache yet: without it, the network is not used. No code of a data set is run.
    """

    name: ClassVar[str] = "hf"
    shorthand: ClassVar[str] = "path"
    location_fields: ClassVar[tuple[str, ...]] = ("download",)

    path: str = Field("", description="name at Hugging Face, or a folder on disk; `hf:NAME` sets it")
    config: str = Field("", description="configuration of the data set, if it has several")
    revision: str = Field("", description="commit or tag of the data set; empty: the newest")
    train: str = Field("train", description="the split to train on")
    test: str = Field("test", description="the split that is the official test set; ignored where there is none")
    image_column: str = Field("", description=f"column of images; default: the first of {', '.join(IMAGE_NAMES)}")
    label_column: str = Field("", description=f"column of labels; default: the first of {', '.join(LABEL_NAMES)}")
    size: int = Field(32, ge=16, le=224, description="side of the pictures after resizing, in pixels")
    channels: Literal[1, 3] = Field(3, description="3 for colour, 1 for grey")
    download: bool = Field(False, description="download the data if it is missing")

    def read(self) -> ImagePool:
        """Decode the training split, then the test split."""
        if not self.path:
            raise UserError("The data set 'hf' needs a name or a folder: give it as hf:NAME.")
        splits = self._opened(_library())
        if self.train not in splits:
            raise unknown_name(f"split in hf:{self.path}", self.train, natural_order(splits))
        parts = [splits[name] for name in (self.train, self.test) if name in splits]
        parts = parts[:1] if self.test == self.train else parts
        needed = sum(map(len, parts)) * self.channels * self.size**2
        if needed > MAX_BYTES:
            raise UserError(
                f"{sum(map(len, parts))} pictures at {self.size}×{self.size} need {needed / 2**30:.1f} GiB: at most "
                f"{MAX_BYTES / 2**30:.0f} can be decoded, choose a smaller `size`."
            )
        image = self._column(parts[0], self.image_column, IMAGE_NAMES, "image_column")
        label = self._column(parts[0], self.label_column, LABEL_NAMES, "label_column")
        pixels = torch.cat([self._pixels(part, image) for part in parts])
        labels, names = self._labels(parts, label)
        return ImagePool(pixels, labels, torch.arange(len(labels)) >= len(parts[0]), names)

    def _opened(self, library: ModuleType) -> Mapping[str, Any]:
        """The splits by name; nobody is asked for anything unless `download` says so."""
        folder = Path(self.path).expanduser()
        saved = folder.is_dir() and any((folder / mark).is_file() for mark in ("dataset_dict.json", "state.json"))
        try:
            if saved:
                found = library.load_from_disk(str(folder))
            else:
                with nullcontext() if self.download else _offline(library):
                    found = library.load_dataset(self.path, self.config or None, revision=self.revision or None)
        except Exception as error:  # the library raises many kinds, its own and others'
            hint = "" if self.download else "; --download lets it be downloaded"
            told = " ".join(str(error).split())[:200] or "no message"
            raise UserError(f"hf:{self.path} cannot be opened: {type(error).__name__}: {told}{hint}.") from None
        splits = found if isinstance(found, Mapping) else {self.train: found}
        if self.revision and not saved and not self.download and not folder.is_dir():
            self._check_revision(splits)
        return splits

    def _check_revision(self, splits: Mapping[str, Any]) -> None:
        """From its cache the library takes the data that was used last, of whatever revision."""
        cache = importlib.import_module("huggingface_hub").try_to_load_from_cache
        card = cache(self.path, "README.md", repo_type="dataset", revision=self.revision)
        wanted = Path(card).parent.name if isinstance(card, str) else self.revision
        files = [file["filename"] for part in splits.values() for file in part.cache_files]
        if not files or any(Path(file).parent.name != wanted for file in files):
            raise UserError(
                f"Revision '{self.revision}' of hf:{self.path} is not what the library's cache has at hand; "
                "--download lets it be fetched."
            )

    def _column(self, part: Any, given: str, usual: tuple[str, ...], field: str) -> str:
        columns = list(part.column_names)
        found = given if given in columns else None if given else next((n for n in usual if n in columns), None)
        if found is None:
            raise UserError(
                f"hf:{self.path} has the columns {', '.join(columns)}: `{field}` must name one of them; "
                f"given: '{given}'."
            )
        return found

    def _pixels(self, part: Any, column: str) -> Tensor:
        """All pictures of a split as (N, C, size, size) uint8."""
        found = torch.empty((len(part), self.channels, self.size, self.size), dtype=torch.uint8)
        for index, row in enumerate(part.select_columns([column])):
            found[index] = self._picture(row[column], index, column)
        return found

    def _picture(self, value: object, index: int, column: str) -> Tensor:
        """One picture; a column of arrays must hold bytes (H, W), (H, W, C)."""
        array = None if isinstance(value, Image.Image) else np.asarray(value)
        if array is not None:
            good = array.ndim in (2, 3) and np.issubdtype(array.dtype, np.integer) and array.size > 0
            if not good or array.min() < 0 or array.max() > 255 or (array.ndim == 3 and array.shape[2] not in (1, 3)):
                raise UserError(f"'{column}' of hf:{self.path} must hold pictures; record {index} is none.")
            value = Image.fromarray(array.astype(np.uint8).squeeze())
        assert isinstance(value, Image.Image)
        if value.mode.startswith(("I", "F")):  # converting these would clip at 255 instead of scaling
            raise UserError(f"Record {index} of hf:{self.path} has more than 8 bits per channel: allowed are 8.")
        colour = value.convert("RGB" if self.channels == 3 else "L")
        small = colour.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small).reshape(self.size, self.size, self.channels)).permute(2, 0, 1)

    def _labels(self, parts: list[Any], column: str) -> tuple[Tensor, tuple[str, ...]]:
        """Labels (N,) of all splits, and the names of the classes."""
        values = [value for part in parts for value in part[column]]
        names = getattr(parts[0].features[column], "names", None)
        if all(isinstance(value, str) for value in values):
            names = natural_order(set(values))
            places = {name: place for place, name in enumerate(names)}
            values = [places[value] for value in values]
        if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values):
            raise UserError(f"'{column}' of hf:{self.path} must hold class numbers from 0, or texts.")
        told = names or [str(label) for label in range(max(values, default=-1) + 1)]
        return torch.tensor(values, dtype=torch.int64), tuple(map(str, told))


@contextmanager
def _offline(library: ModuleType) -> Iterator[None]:
    """In this block the library reads its cache and asks the network for nothing.

    `local_files_only` of its DownloadConfig does not do that: with it, version 5.2 still downloads parquet files
    (tests/datasets/test_hf_download.py). The library reads both switches at each call.
    """
    switches = [library.config, importlib.import_module("huggingface_hub").constants]
    before = [switch.HF_HUB_OFFLINE for switch in switches]
    try:
        for switch in switches:
            switch.HF_HUB_OFFLINE = True
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.HF_HUB_OFFLINE = value


def _library() -> ModuleType:
    """The library. The checkout's own folder of that name hides it from a Python that was started there with `-c`."""
    try:
        found = importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise UserError(
            "The data set 'hf' needs the library `datasets` of Hugging Face: pip install 'leakboard[hf]'."
        ) from None
    except ImportError as error:
        raise UserError(
            f"The library `datasets` cannot be imported ({error}); start Python in a folder that has none of that name."
        ) from None
    return found
