"""A whole training: the accuracy between and at the end, what it says meanwhile, and where it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leakboard.federation import device as device_module
from leakboard.federation.device import compute_device
from leakboard.federation.rounds import Federation
from leakboard.leaderboard.cells import accuracy_curve, train
from leakboard.leaderboard.cells.training_progress import TrainingProgress, read_progress
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, make_plan
from leakboard.leaderboard.records.record import TrainingSummary
from leakboard.leaderboard.records.validation import _plausible
from leakboard.suites.schema import load_suite
from tests.leaderboard.runs import write_suite

ROUNDS = 60


@pytest.fixture
def job(tmp_path: Path) -> Job:
    suite = load_suite(str(write_suite(tmp_path, training__rounds=ROUNDS, training__batch_size=16)))
    return make_plan(suite, Options(run=tmp_path / "run")).trainings[0]


def test_the_record_says_on_how_many_images_the_accuracy_between_was_measured(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    train.run_training(job)
    summary = train.load_summary(job.training_folder)
    assert summary.curve_records == 115  # 3 points within 4 % of 3 * 60 rounds * 3 clients * 16 records
    assert summary.curve_records < summary.test_records
    assert summary.curve_note() == f"accuracy before the end is that of 115 of {summary.test_records} test images"
    *between, last = sorted(summary.accuracy_by_round)
    assert 1 <= len(between) <= 3
    assert last == ROUNDS
    assert summary.accuracy_by_round[last] == summary.accuracy
    assert all(
        summary.accuracy_by_round[r] * 115 == pytest.approx(round(summary.accuracy_by_round[r] * 115)) for r in between
    )
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith(f"round {ROUNDS} of {ROUNDS}, test accuracy ")
    assert "(115 images)" in said[-1]


def test_progress_is_there_while_a_training_goes_on_and_gone_afterwards(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TrainingProgress] = []
    run = Federation.run

    def watched(federation: Any) -> Any:
        seen.extend(read_progress(Path(job.run), [job.training_key]).values())
        return run(federation)

    monkeypatch.setattr(Federation, "run", watched)
    train.run_training(job)
    assert [(one.round, one.rounds) for one in seen] == [(0, ROUNDS)]
    assert read_progress(Path(job.run), [job.training_key]) == {}


def test_a_failed_training_leaves_no_progress(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(federation: Any) -> Any:
        raise ArithmeticError("out of numbers")

    monkeypatch.setattr(Federation, "run", broken)
    with pytest.raises(ArithmeticError):
        train.run_training(job)
    assert read_progress(Path(job.run), [job.training_key]) == {}


def test_a_training_computes_on_the_device_of_its_run(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no such device here: tensors that would move to it are noted and stay."""
    moved: list[str] = []
    during: set[str] = set()

    def between(value: Any, device: str) -> Any:
        during.add(compute_device())
        moved.append(device)
        return value

    def at_the_end(value: Any, device: str) -> Any:
        moved.append(device)
        return value

    def there(function: Any, device: str, *args: Any, **kwargs: Any) -> Any:
        return function(*between(args, device), **kwargs)

    monkeypatch.setattr(device_module, "run_there", there)  # gradients and norms
    monkeypatch.setattr(accuracy_curve, "on_device", between)
    monkeypatch.setattr(train, "on_device", at_the_end)
    train.run_training(job.model_copy(update={"device": "cuda"}))
    assert set(moved) == during == {"cuda"}
    assert compute_device() == "cpu"


def summary_of(**changes: Any) -> TrainingSummary:
    given: dict[str, Any] = {"key": "k", "accuracy": 0.5, "test_records": 200, "train_accuracy": 0.5}
    given |= {"train_records": 9, "rounds": 1, "client_rounds": 1, "parameters": 1, "diverged": False, "observed": {}}
    given |= {"bytes_by_kind": {}, "seconds": {}, "cpu_seconds": {}, "wall_seconds": 1.0}
    return TrainingSummary.model_validate({**given, **changes})


@pytest.mark.parametrize("count", [None, 200])
def test_there_is_nothing_to_note_where_all_images_were_used(count: int | None) -> None:
    assert summary_of(curve_records=count).curve_note() == ""


@pytest.mark.parametrize(("count", "plausible"), [(None, True), (1, True), (200, True), (0, False), (201, False)])
def test_no_curve_has_more_images_than_there_are(count: int | None, plausible: bool) -> None:
    assert _plausible(summary_of(curve_records=count)) == plausible
