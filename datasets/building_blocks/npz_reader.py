"""Arrays of an npz file that may be hostile: numpy reads them without pickle, once their size is known and allowed."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from leakboard.core.errors import UserError
from leakboard.datasets.building_blocks.images import MAX_BYTES

Array = np.ndarray[Any, np.dtype[Any]]


class NpzReader:
    """The arrays of one npz file by name; each is decoded only when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._budget = MAX_BYTES
        if not path.is_file():
            raise UserError(f"There is no file {path}: give an npz file with `images` and `labels`.")
        with self._opened() as archive:
            self.names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def get(self, name: str) -> Array:
        """Decode one array; a name that is not there, Python objects and bombs are `UserError`s."""
        if name not in self.names:
            raise UserError(f"{self.path} has no array '{name}': it holds {', '.join(self.names) or 'nothing'}.")
        with self._opened() as archive, archive.open(f"{name}.npy") as member:
            self._check_size(member, name, archive.getinfo(f"{name}.npy").file_size)
            member.seek(0)
            found: Array = np.load(member, allow_pickle=False)
            return found

    def _check_size(self, member: IO[bytes], name: str, length: int) -> None:
        """Refuse what the header alone shows to be wrong: numpy allocates as much as a header says."""
        if npy.read_magic(member) != (1, 0):
            # later versions are for structured arrays only, and their header may itself be gigabytes
            raise UserError(f"The array '{name}' in {self.path} is not a plain one: save it with numpy.savez.")
        shape, _, dtype = npy.read_array_header_1_0(member)
        if dtype.hasobject:
            raise UserError(
                f"The array '{name}' in {self.path} holds Python objects, which are never unpickled: allowed are "
                "plain numbers and text."
            )
        if min(shape, default=0) < 0 or not dtype.itemsize:  # values of no size would be as many as one likes
            raise ValueError(f"shape {shape} of {dtype}")
        size = math.prod(shape) * dtype.itemsize
        self._budget -= size
        if self._budget < 0:
            raise UserError(
                f"The array '{name}' {shape} in {self.path} needs {size / 2**30:.1f} GiB: at most "
                f"{MAX_BYTES / 2**30:.0f} GiB are read from one file."
            )
        if length != member.tell() + size:
            raise ValueError("data after the array" if length > member.tell() + size else "the array is cut short")

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        """The file; whatever a damaged one raises, anywhere in zipfile, zlib or numpy, becomes one sentence."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise UserError(
                f"{self.path} is not a readable npz file ({reason}): save it again with numpy.savez."
            ) from None
