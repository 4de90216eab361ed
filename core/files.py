"""Files that are either complete or absent."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

#: bytes of a tensor file in addition to the tensors themselves
HEADER_ROOM = 2**20


def write_text(path: Path, text: str, *, synced: bool = True) -> None:
    """Write a text file atomically: a kill at any moment leaves the old file or the new one."""
    write_bytes(path, text.encode(), synced=synced)


def write_bytes(path: Path, content: bytes, *, synced: bool = True) -> None:
    """Write a file atomically. Without `synced` this does not wait for the disk: a power cut may lose the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove partial files that killed processes left in a folder; those of running processes stay."""
    for part in folder.glob(".*.part"):
        owner = part.name.split(".")[-2]
        if not (owner.isdecimal() and _alive(int(owner))):
            shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OverflowError:
        return False
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill that gets its name only if the block succeeds; an unfinished one is removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        if folder.exists():
            shutil.rmtree(folder)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock of this file during the block; it never waits for the lock.

    The lock is released when its process ends in any way; the empty file stays. If nothing can be written there is no
    lock, and every process gets True.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError:
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError as error:
            free = not isinstance(error, BlockingIOError)  # a file system without locks
        yield free


def keep_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Cache tensors for later runs, atomically; if nothing can be written they are simply not cached."""
    with suppress(OSError):  # a read-only checkout works too, but slower
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        write_bytes(path, save({name: value.contiguous() for name, value in tensors.items()}))


def kept_tensors(path: Path, most: int) -> dict[str, Tensor] | None:
    """The tensors that `keep_tensors` wrote; None if the file is missing, incomplete, or larger than `most` bytes.

    Anyone with write access to the folder may have written the file: the caller must check names, shapes and dtypes.
    """
    try:
        return load(path.read_bytes()) if path.stat().st_size <= most + HEADER_ROOM else None
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RuntimeError):
        return None  # dtypes that torch does not know raise a KeyError
