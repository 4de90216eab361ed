"""Data for outsiders: from an archive, verified, and compared with what the boards were made with. No network."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.datasets.cifar10 import Cifar10
from leakboard.datasets.loading import load_pool
from leakboard.leaderboard.api.data import get_data
from leakboard.leaderboard.publishing.submit import PUBLISHED_FILE
from leakboard.leaderboard.records.record import PluginSpec, Provenance
from tests.datasets.test_torchvision import everything, save_cifar10, trusting
from tests.leaderboard.synthetic import membership

__all__ = ["trusting"]


def archive_of(folder: Path) -> Path:
    """An archive like cifar-10-python.tar.gz, with a member that tries to lead out of its folder."""
    save_cifar10(folder / "made", per_batch=20)
    path = folder / "cifar.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder / "made" / Cifar10.folder, Cifar10.folder)
        archive.add(folder / "made" / Cifar10.folder / "batches.meta", f"../../{Cifar10.folder}/escaped")
    return path


def board_with(folder: Path, digest: str) -> Path:
    """A published board of one record on CIFAR-10 with this digest."""
    record = membership("fedsgd", "lira")
    data = PluginSpec(label="cifar10", name="cifar10", parameters={})
    training = record.cell.training.model_copy(update={"dataset": data})
    made = Provenance(
        created="", commit="", dirty=False, versions={}, platform="", processor="", device="", data_digest=digest
    )
    update = {"cell": record.cell.model_copy(update={"training": training}), "provenance": made}
    write_text(folder / "small" / "0.json", record.model_copy(update=update).to_json())
    given = {"suite": "small", "control": "fedsgd", "utility_gate": 0.9}
    write_text(folder / "small" / PUBLISHED_FILE, json.dumps(given))
    return folder


@pytest.mark.usefixtures("trusting")
def test_an_archive_is_unpacked_verified_and_compared(tmp_path: Path) -> None:
    archive, to = archive_of(tmp_path), tmp_path / "to" / "data"
    folder, checks = get_data("cifar10", archive=archive, to=to, published=tmp_path / "no boards")
    assert (folder, checks) == (to / Cifar10.folder, [])
    assert not list(tmp_path.glob("to/escaped"))
    assert [path.name for path in to.iterdir()] == [Path(Cifar10.folder).name]  # nothing is left beside it
    digest = load_pool(Cifar10(root=str(to))).digest()
    _, (same,) = get_data("cifar10", to=to, published=board_with(tmp_path / "a", digest))  # there already: no archive
    assert same.agrees
    assert same.line == f"The data has the digest {digest[:12]}… that the board small was made with."
    _, (other,) = get_data("cifar10", to=to, published=board_with(tmp_path / "b", "0" * 64))
    assert not other.agrees
    assert other.line.startswith("The data is not that of the board small: its records state the digest 000000000000…")


def test_an_archive_with_other_files_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """torchvision's checksums are asked: these files were made by the test."""
    archive, to = archive_of(tmp_path), tmp_path / "to"
    with pytest.raises(UserError, match=r"does not hold CIFAR-10: a file is missing or has another checksum"):
        get_data("cifar10", archive=archive, to=to)
    assert everything(to) == []


@pytest.mark.parametrize(
    ("name", "file", "sentence"),
    [
        ("digits", "", "data set that can be got"),
        ("cifar10", "nothing.tar.gz", "There is no archive"),
        ("cifar10", "text.tar.gz", "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(name: str, file: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "text.tar.gz").write_text("text")
    with pytest.raises(UserError, match=sentence):
        get_data(name, archive=tmp_path / file if file else "", to=tmp_path / "to")
