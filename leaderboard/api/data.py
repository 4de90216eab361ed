"""Data for outsiders: getting a data set, and whether it is the one that the published boards were made with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from leakboard.core import registry
from leakboard.core.errors import UserError, unknown_name
from leakboard.datasets.building_blocks.getting import get_files
from leakboard.datasets.building_blocks.torchvision import TorchvisionDataset
from leakboard.datasets.loading import load_pool
from leakboard.leaderboard.publishing.submit import PUBLISHED, PUBLISHED_FILE, open_any


@dataclass(frozen=True)
class DataCheck:
    """A published board on a data set: the digest that its records state, and that of the data here."""

    board: str
    stated: str
    found: str

    @property
    def agrees(self) -> bool:
        """Whether the board was made with the same data."""
        return self.stated == self.found

    @property
    def line(self) -> str:
        """The result in one sentence."""
        if self.agrees:
            return f"The data has the digest {self.found[:12]}… that the board {self.board} was made with."
        return (
            f"The data is not that of the board {self.board}: its records state the digest {self.stated[:12]}…, "
            f"the data here has {self.found[:12]}…."
        )


def get_data(
    name: str, *, archive: str | Path = "", to: str | Path = "", published: str | Path = PUBLISHED
) -> tuple[Path, list[DataCheck]]:
    """Get a data set of torchvision, from an archive or by its download, and compare it with the published boards.

    Returns the folder of its files and one check per board and digest that names the data set.
    """
    known = [entry for entry in registry.entries("dataset") if _is_torchvision(entry)]
    if name not in known:
        raise unknown_name("data set that can be got", name, known)
    folder = get_files(_dataset(name, {}, to), str(archive))
    return folder, list(_checks(name, to, Path(published)))


def _is_torchvision(name: str) -> bool:
    return issubclass(registry.load("dataset", name), TorchvisionDataset)


def _dataset(name: str, parameters: dict[str, Any], to: str | Path) -> TorchvisionDataset:
    return cast(TorchvisionDataset, registry.create("dataset", name, {**parameters, "root": str(to)}))


def _checks(name: str, to: str | Path, published: Path) -> Iterator[DataCheck]:
    for file in sorted(published.glob(f"*/{PUBLISHED_FILE}")):
        stated: dict[str, dict[str, Any]] = {}
        for record in open_any(file.parent).records:
            spec = record.cell.training.dataset
            if spec.name == name and record.provenance is not None:
                stated.setdefault(record.provenance.data_digest, spec.parameters)
        for digest, parameters in stated.items():
            try:
                found = load_pool(_dataset(name, parameters, to)).digest()
            except UserError as error:
                raise UserError(f"The data cannot be read with the settings of {file.parent.name}: {error}") from None
            yield DataCheck(file.parent.name, digest, found)
