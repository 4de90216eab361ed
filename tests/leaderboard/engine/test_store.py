"""How large a run is, and what is removed from it: transcripts that can be replayed, of finished trainings alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leakboard.core.errors import UserError
from leakboard.federation.observed import REPLAY_FOLDER
from leakboard.federation.transcript import TRANSCRIPT_FILES as TRANSCRIPT
from leakboard.leaderboard.engine.state import only_engine
from leakboard.leaderboard.engine.store import can_be_replayed, describe_size, prune, sizes
from tests.leaderboard.runs import call


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def training_of(run: Path) -> Path:
    (found,) = (run / "trainings").iterdir()
    return found


def test_status_says_how_large_the_folder_is(run: Path) -> None:
    found = sizes(run)
    assert sum(found.values()) == sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert {"transcripts", "trainings", "answers", "records", "page"} <= set(found)
    assert found["transcripts"] == sum((training_of(run) / name).stat().st_size for name in TRANSCRIPT)
    assert f"on disk    {describe_size(run)}" in call("status", "--out", run).out


def test_a_transcript_that_cannot_be_replayed_stays(run: Path) -> None:
    assert can_be_replayed(training_of(run))
    shutil.rmtree(training_of(run) / REPLAY_FOLDER)
    assert not can_be_replayed(training_of(run))
    assert prune(run) == (0, 0)
    (training_of(run) / REPLAY_FOLDER).mkdir()  # an empty folder replays nothing
    assert prune(run) == (0, 0)
    assert "There is nothing to remove" in call("prune", run).out


def test_a_transcript_that_can_be_replayed_goes_and_the_rest_stays(run: Path) -> None:
    training = training_of(run)
    before = {path for path in run.rglob("*") if path.is_file()}
    size = sizes(run)["transcripts"]
    assert prune(run, dry_run=True) == (2, size)
    assert {path for path in run.rglob("*") if path.is_file()} == before
    assert "2 files" in call("prune", run).out
    gone = {training / name for name in TRANSCRIPT}
    assert {path for path in run.rglob("*") if path.is_file()} == before - gone


def test_a_training_with_cells_to_come_keeps_its_transcript(run: Path) -> None:
    next((run / "records").glob("*.json")).unlink()
    assert prune(run) == (0, 0)


def test_nothing_is_removed_while_a_run_works_there(run: Path) -> None:
    with only_engine(run), pytest.raises(UserError, match=r"wait until it has ended"):
        prune(run)
