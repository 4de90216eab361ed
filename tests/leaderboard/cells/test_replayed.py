"""A training whose transcript was removed is replayed before it is attacked again, with the same result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leakboard.core.errors import UserError
from leakboard.federation.observed import REPLAY_FOLDER
from leakboard.federation.transcript import TRANSCRIPT_FILES, Transcript
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cells.replayed import make_training, replay_training
from leakboard.leaderboard.engine.store import prune, sizes
from leakboard.leaderboard.planning.jobs import Job
from tests.leaderboard.runs import call, comparable


@pytest.fixture
def pruned(tiny_run: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    assert prune(folder)[0] == len(TRANSCRIPT_FILES)
    return folder


@pytest.fixture
def job(pruned: Path) -> Job:
    return open_run(pruned).jobs[0]


def forget(run: Path, attack: str) -> None:
    """Remove the records and the answers of an attack."""
    for path in (run / "records").glob(f"*--{attack}--*"):
        path.unlink()


def test_a_pruned_run_is_attacked_again_and_pruned_again(tiny_suite: Path, tiny_run: Path, pruned: Path) -> None:
    for attack in ("inverting-gradients", "loss-threshold"):
        forget(pruned, attack)
    outcome = call("run", "--suite", tiny_suite, "--out", pruned, "--workers", 1)
    assert outcome.code == 0, outcome.err
    assert "ok       replayed: training digits / fedsgd / seed 0" in outcome.err
    assert ": trained, " not in outcome.err
    assert comparable(pruned) == comparable(tiny_run)
    assert "transcripts" not in sizes(pruned)


def test_a_replay_gives_the_transcript_and_all_that_is_not_there(tiny_run: Path, job: Job) -> None:
    """A published training comes as its summary and its snapshot."""
    (original,) = (tiny_run / "trainings").iterdir()
    for file in job.training_folder.iterdir():
        if file.is_file() and file.name != "summary.json":
            file.unlink()
    assert job.must_be_replayed
    assert not job.is_trained
    replay_training(job)
    assert job.is_trained
    assert sorted(p.name for p in job.training_folder.iterdir()) == sorted(p.name for p in original.iterdir())
    for file in original.iterdir():
        if file.is_file():
            assert (job.training_folder / file.name).read_bytes() == file.read_bytes(), file.name
    assert Transcript.load(job.training_folder).digest() == Transcript.load(original).digest()
    assert list(job.training_folder.parent.iterdir()) == [job.training_folder]  # no scratch is left


def test_a_view_of_a_pruned_run_is_replayed(tiny_run: Path, pruned: Path) -> None:
    then, now = (open_run(folder).view("server") for folder in (tiny_run, pruned))
    assert Transcript(now.observations).digest() == Transcript(then.observations).digest()


def break_digest(folder: Path) -> None:
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "transcript": "0" * 64}))


def cut(folder: Path) -> None:
    file = folder / "value.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "said"), [(break_digest, "The replayed rounds differ"), (cut, "value.safetensors cannot be read")]
)
def test_a_snapshot_that_does_not_give_what_was_recorded_is_not_used(
    job: Job, damage: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(job.training_folder / REPLAY_FOLDER)
    with pytest.raises(UserError, match=said):
        make_training(job.model_copy(update={"published": "board"}))  # somebody else's training is not run here
    assert not (job.training_folder / TRANSCRIPT_FILES[0]).exists()
    make_training(job)
    told = capsys.readouterr().out
    assert "The training is run again." in told
    assert job.is_trained


def test_other_data_is_told(job: Job) -> None:
    with pytest.raises(UserError, match=r"The data is not that of the training"):
        replay_training(job.model_copy(update={"data_digest": "0" * 64}))
