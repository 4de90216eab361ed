"""A training that is killed goes on from its last snapshot, and its folder is the same byte for byte, but for time."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from leakboard.datasets.loading import load_pool
from leakboard.federation.observed import REPLAY_FOLDER, recorded_digest, replay_observed
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, client_name
from leakboard.federation.transcript import Transcript
from leakboard.federation.view import seeable
from leakboard.leaderboard.cells import train
from leakboard.leaderboard.cells.checkpoints import checkpoint_folder
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, make_plan
from leakboard.leaderboard.planning.public_settings import splits_of
from leakboard.suites.schema import load_suite
from tests.leaderboard.engine.test_resume import group_members, start
from tests.leaderboard.runs import HANG, call, wait_until, write_suite

ROUNDS = 12
TIMES = ("seconds", "cpu_seconds", "extrapolated_seconds", "wall_seconds")


class Killed(BaseException):
    """Stands for kill -9."""


def job_in(folder: Path, **options: Any) -> Job:
    folder.mkdir()
    suite = load_suite(str(write_suite(folder, training__rounds=ROUNDS)))
    return make_plan(suite, Options(run=folder / "run", checkpoint_seconds=0, **options)).trainings[0]


def contents(folder: Path) -> dict[str, Any]:
    """The files of a training, without times."""
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    summary = json.loads(found["summary.json"])
    found["summary.json"] = {name: value for name, value in summary.items() if name not in TIMES}
    return found


def kill_after(monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    run = Federation._round

    def dies(federation: Federation, index: int) -> None:
        if index == done:
            raise Killed
        run(federation, index)

    monkeypatch.setattr(Federation, "_round", dies)


def killed(job: Job, done: int) -> Path:
    """The snapshots of a training that was killed in the round after this one."""
    with pytest.MonkeyPatch.context() as patched:
        kill_after(patched, done)
        with pytest.raises(Killed):
            train.run_training(job)
    return checkpoint_folder(job.training_folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    job = job_in(tmp_path_factory.mktemp("whole") / "a")
    train.run_training(job)
    assert not checkpoint_folder(job.training_folder).exists()
    return contents(job.training_folder)


def test_it_goes_on_and_says_so(tmp_path: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    job = job_in(tmp_path / "b")
    kept = killed(job, 5)
    assert sorted(path.name for path in kept.iterdir()) == ["round-0000004", "round-0000005"]
    killed(job, 8)
    capsys.readouterr()
    train.run_training(job)
    assert capsys.readouterr().out.startswith("round 8 of 12 (went on from round 8)")
    assert contents(job.training_folder) == whole
    assert [path.name for path in job.training_folder.parent.iterdir()] == [job.training_key]


@pytest.mark.parametrize("how", ["cut", "other torch", "other training", "no file"])
def test_a_snapshot_that_cannot_be_used_is_told_and_left(
    how: str, tmp_path: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_in(tmp_path / "b")
    older, newer = sorted(killed(job, 5).iterdir())
    shutil.rmtree(older)
    about = json.loads((newer / "about.json").read_text())
    if how == "cut":
        tensors = newer / "value.safetensors"
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif how == "no file":
        (newer / "value.json").unlink()
    else:
        about |= {"torch": "1.0"} if how == "other torch" else {"training": "f" * 64}
        (newer / "about.json").write_text(json.dumps(about))
    capsys.readouterr()
    train.run_training(job)
    told = capsys.readouterr().out
    assert told.count("is not used") == 1
    assert told.startswith("The snapshot 'round-0000005' is not used: ")
    assert "went on" not in told
    assert contents(job.training_folder) == whole


def test_of_two_snapshots_the_older_one_is_used_if_the_newer_one_is_damaged(
    tmp_path: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_in(tmp_path / "b")
    newer = max(killed(job, 5).iterdir())
    (newer / "value.json").write_text((newer / "value.json").read_text().replace("4", "5", 1))
    train.run_training(job)
    assert "(went on from round 4)" in capsys.readouterr().out
    assert contents(job.training_folder) == whole


def test_refused_snapshots_make_way_for_new_ones_of_earlier_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_in(tmp_path / "b")
    for refused in killed(job, 8).iterdir():
        about = json.loads((refused / "about.json").read_text())
        (refused / "about.json").write_text(json.dumps({**about, "torch": "1.0"}))
    kept = killed(job, 3)
    assert capsys.readouterr().out.count("is not used") == 2
    assert sorted(path.name for path in kept.iterdir()) == ["round-0000002", "round-0000003"]
    train.run_training(job)
    assert "(went on from round 3)" in capsys.readouterr().out


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "the disk is full"), SafetensorError("the disk is full")])
def test_a_full_disk_does_not_end_the_training(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: Any) -> None:
        raise error

    job = job_in(tmp_path / "b")
    with monkeypatch.context() as patched:
        patched.setattr("leakboard.federation.value_files.save_file", full)
        kept = killed(job, 2)
    assert "No snapshot could be written after round 2: the disk is full." in capsys.readouterr().out
    assert list(kept.iterdir()) == []


def test_fresh_keys_go_on_too_and_are_not_stored_for_a_replay(tmp_path: Path) -> None:
    job = job_in(tmp_path / "b", fresh_keys=True)
    newest = max(killed(job, 5).iterdir())
    about = json.loads((newest / "about.json").read_text())
    train.run_training(job)
    assert about["kind"] == "resume"
    assert not (job.training_folder / REPLAY_FOLDER).exists()


def test_checkpoint_seconds_are_in_no_key(tmp_path: Path) -> None:
    suite = load_suite(str(write_suite(tmp_path)))
    one, two = (make_plan(suite, Options(run=tmp_path, checkpoint_seconds=s)) for s in (0.0, 500.0))
    assert [job.key for job in one.cells] == [job.key for job in two.cells]
    assert [job.training_key for job in one.trainings] == [job.training_key for job in two.trainings]


def test_a_training_stores_what_its_observed_rounds_need(tmp_path: Path) -> None:
    job = job_in(tmp_path / "b")
    train.run_training(job)
    folder, pool = job.training_folder / REPLAY_FOLDER, load_pool(job.make_dataset())
    shards = {client_name(i): pool.take(shard) for i, shard in enumerate(splits_of(job, pool).shards)}
    observe, public = ObservedRounds.of_record(job.training.observe), train.load_public(job.training_folder)
    torch.set_num_threads(1)
    found = replay_observed(folder, job.make_defense(), public, shards, observe, job.private_seed)
    seen = Transcript(tuple(map(seeable, found.transcript.observations)))
    assert seen.digest() == recorded_digest(folder) == Transcript.load(job.training_folder).digest()


def test_a_number_of_seconds_that_is_none_is_refused(tmp_path: Path) -> None:
    outcome = call("run", "--suite", write_suite(tmp_path), "--out", tmp_path / "r", "--checkpoint-seconds", "-1")
    assert outcome.code == 2
    assert "checkpoint_seconds must be from 0" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["fedsgd", "secagg"])
def test_kill_9_in_a_training(defense: str, tmp_path: Path) -> None:
    """The engine and all its processes are killed as soon as there is a snapshot of some rounds."""
    suite = write_suite(
        tmp_path,
        defenses=[defense],
        control=defense,
        training__rounds=300,
        attacks=[{"name": "prior", "threats": ["server"]}],
    )
    folders = [tmp_path / name for name in ("killed", "whole")]
    process = start(suite, folders[0], "--workers", "1", "--checkpoint-seconds", "0")
    wait_until(lambda: any(folders[0].glob("trainings/*.snapshots/round-000000[5-9]")) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=HANG)
    wait_until(lambda: not group_members(process.pid))
    assert process.returncode == -signal.SIGKILL
    assert list(folders[0].glob("trainings/*.snapshots/round-*"))
    for folder in folders:
        assert call("run", "--suite", suite, "--out", folder, "--workers", 1).code == 0
    logs = [next((folder / "logs").glob("training-*.log")).read_text() for folder in folders]
    assert ["went on from round" in log for log in logs] == [True, False]
    one, two = (next((folder / "trainings").iterdir()) for folder in folders)
    assert contents(one) == contents(two)
