"""What torchvision's datasets have in common: their location, how they are downloaded and read."""

from __future__ import annotations

import http.client
import os
import socket
import tarfile
import tempfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.npz import Npz

#: a connection that is silent for this long has failed; torchvision itself would wait forever
SILENCE_SECONDS = 30.0
#: errors of a download: network and disk (OSError), torchvision's checksum (RuntimeError), a truncated archive
FETCH_ERRORS = (OSError, RuntimeError, EOFError, ValueError, http.client.HTTPException, tarfile.TarError, zlib.error)


def data_root(root: str) -> Path:
    """The folder of downloaded data: `root`, else $LEAKBOARD_DATA, else ~/.cache/leakboard."""
    return Path(root or os.environ.get("LEAKBOARD_DATA") or "~/.cache/leakboard").expanduser()


class TorchvisionDataset(Dataset):
    """Base of the datasets that torchvision reads; a subclass names the class of torchvision."""

    shorthand: ClassVar[str] = "root"
    location_fields: ClassVar[tuple[str, ...]] = ("root", "download")
    #: the name of the dataset in messages
    title: ClassVar[str]
    #: the folder under `root` that holds the files, and the files that belong into it
    folder: ClassVar[str]
    contents: ClassVar[str]

    root: str = Field("", description="folder of downloaded data; default $LEAKBOARD_DATA, else ~/.cache/leakboard")
    download: bool = Field(False, description="download the data if it is missing")
    train_per_class: int | None = Field(
        None, ge=1, description="use only this many training images of each class, the first ones; null: all"
    )
    test_per_class: int | None = Field(
        None, ge=1, description="use only this many official test images of each class, the first ones; null: all"
    )

    @classmethod
    @abstractmethod
    def source(cls) -> Any:
        """The class of `torchvision.datasets` (called with root, train, download)."""

    def read(self) -> ImagePool:
        """The official training set, then the official test set, or only the first images of each class of both.

        `root` may also be an npz file that holds them, or at least those images, in the official order.
        """
        root = data_root(self.root)
        if root.suffix == ".npz":
            return self._first(Npz(path=str(root)).read())
        both = self._open(root)
        if both is None and self.download:
            self._fetch(root)
            both = self._open(root)
        if both is None:
            raise self._missing(root)
        return self._first(self._pool(*both))

    def _first(self, pool: ImagePool) -> ImagePool:
        """The first `train_per_class` and `test_per_class` images of each class, in their order."""
        keep = torch.zeros(len(pool.labels), dtype=torch.bool)
        for part, count in ((~pool.is_test, self.train_per_class), (pool.is_test, self.test_per_class)):
            for label in range(pool.classes):
                found = (part & (pool.labels == label)).nonzero().squeeze(1)
                if count is not None and len(found) < count:
                    raise UserError(
                        f"{self.title}: {count} images per class were requested; class {label} has {len(found)}."
                    )
                keep[found if count is None else found[:count]] = True
        return ImagePool(pool.pixels[keep], pool.labels[keep], pool.is_test[keep], pool.class_names)

    def _open(self, root: Path) -> tuple[Any, Any] | None:
        """torchvision's objects for both official sets, or None if a file is missing or damaged.

        CIFAR's files are pickles. torchvision's constructor compares each file with its published md5
        (`_check_integrity`, and again for the names in `_load_meta`) before it unpickles the first one,
        so nothing unverified is ever loaded. Do not read these files in any other way.
        """
        try:
            return self.source()(root=root, train=True), self.source()(root=root, train=False)
        except (RuntimeError, AssertionError, ValueError, EOFError, OSError, LookupError):
            return None  # RuntimeError is torchvision's own; the others come from decoding a truncated idx file

    def _pool(self, train: Any, test: Any) -> ImagePool:
        pixels = torch.cat([self.to_pixels(train.data), self.to_pixels(test.data)])
        labels = torch.cat([torch.as_tensor(part.targets, dtype=torch.int64) for part in (train, test)])
        is_test = torch.arange(len(labels)) >= len(train.data)
        return ImagePool(pixels, labels, is_test, tuple(str(name) for name in train.classes))

    @staticmethod
    def to_pixels(data: Any) -> Tensor:
        """torchvision's array (N, 32, 32, 3) as (N, 3, 32, 32) uint8."""
        return torch.from_numpy(np.ascontiguousarray(np.asarray(data, dtype=np.uint8).transpose(0, 3, 1, 2)))

    def _missing(self, root: Path) -> UserError:
        state = "damaged or incomplete" if (root / self.folder).exists() else "not"
        return UserError(
            f"{self.title} is {state} in {root}: put {self.contents} into {root / self.folder}, or set "
            "`download: true` in the data set's parameters, or run with --download."
        )

    def _fetch(self, root: Path) -> None:
        """Download into a folder next to the target and move only complete files: a failure leaves nothing behind."""
        created = [folder for folder in (root, *root.parents) if not folder.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as part, _impatient():
                self.source()(root=part, train=True, download=True)
                for file in sorted((Path(part) / self.folder).rglob("*")):
                    if file.is_file() and file.suffix != ".gz":
                        goal = root / file.relative_to(part)
                        goal.parent.mkdir(parents=True, exist_ok=True)
                        file.replace(goal)
        except FETCH_ERRORS as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(
                f"{self.title} could not be downloaded ({reason}): check the network, or put {self.contents} "
                f"into {root / self.folder} by hand."
            ) from None
        finally:
            for folder in created:  # also after Ctrl-C; after a success none of them is empty
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


@contextmanager
def _impatient() -> Iterator[None]:
    """Sockets that are opened in this block time out after `SILENCE_SECONDS`."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
