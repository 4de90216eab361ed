"""Gets one of torchvision's data sets: from an archive that is already there, or by torchvision's own download."""

from __future__ import annotations

import tarfile
import tempfile
import zlib
from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.datasets.building_blocks.torchvision import TorchvisionDataset, data_root

#: more than this is never unpacked: CIFAR's files have 186 MB
MOST_BYTES = 2**30


def get_files(dataset: TorchvisionDataset, archive: str = "") -> Path:
    """Make sure that the files of a data set are in its folder, whole and verified; returns that folder.

    Files that are there already are kept. torchvision compares each file of CIFAR with its published md5.
    """
    root = data_root(dataset.root)
    if root.suffix == ".npz":
        raise UserError(f"Data is put into a folder, and {root} is an npz file: --to names a folder.")
    there = dataset._open(root) is not None
    if not there and archive:
        _unpack(dataset, Path(archive).expanduser(), root)
    elif not there:
        dataset._fetch(root)
    if not there and dataset._open(root) is None:
        raise UserError(f"{dataset.title} was put into {root}, but torchvision finds a file damaged or missing.")
    return root / dataset.folder


def _unpack(dataset: TorchvisionDataset, archive: Path, root: Path) -> None:
    """The files of `dataset.folder` from a tar archive; they are moved into place only if torchvision accepts them."""
    if not archive.is_file():
        raise UserError(f"There is no archive {archive}: give {dataset.contents}.")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as part:
        try:
            _extract(dataset, archive, Path(part))
        except (OSError, EOFError, tarfile.TarError, ValueError, zlib.error) as error:
            told = getattr(error, "strerror", None) or type(error).__name__
            raise UserError(f"The archive {archive} cannot be read ({told}): give {dataset.contents}.") from None
        if dataset._open(Path(part)) is None:
            raise UserError(
                f"The archive {archive} does not hold {dataset.title}: a file is missing or has another checksum than "
                f"torchvision expects; give {dataset.contents}."
            )
        (root / dataset.folder).mkdir(parents=True, exist_ok=True)
        for file in sorted((Path(part) / dataset.folder).iterdir()):
            file.replace(root / dataset.folder / file.name)


def _extract(dataset: TorchvisionDataset, archive: Path, to: Path) -> None:
    """Copy the regular files of one folder. Names decide nothing but the last part of a path, so none leads out."""
    left, goal = MOST_BYTES, to / dataset.folder
    goal.mkdir(parents=True)
    with tarfile.open(archive, "r|*") as packed:
        for member in packed:
            path = Path(member.name)
            if not member.isfile() or path.parent.name != Path(dataset.folder).name:
                continue
            left -= member.size
            if left < 0:
                raise ValueError("too large")
            file = packed.extractfile(member)
            assert file is not None
            (goal / path.name).write_bytes(file.read())
