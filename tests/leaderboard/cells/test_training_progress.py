"""What a training says while it goes on: rounds, accuracy, loss and the time left, in a file and in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.leaderboard.cells.accuracy_curve import Point
from leakboard.leaderboard.cells.training_progress import Teller, TrainingProgress, progress_file, read_progress

KEY = "a" * 64


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def told(folder: Path) -> TrainingProgress:
    return read_progress(folder, [KEY])[KEY]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return progress_file(tmp_path / "trainings" / KEY)


def test_round_and_time_left_follow_from_the_rounds_after_the_first(tmp_path: Path, file: Path) -> None:
    watch, lines, points = Watch(), list[str](), list[Point]()
    teller = Teller(file, 100, points, watch, lines.append)
    assert told(tmp_path) == TrainingProgress(round=0, rounds=100, written=1000.0)
    watch.now += 500  # set-up and the first round, with its probes
    teller.note(1)
    assert told(tmp_path).seconds_left is None
    points.append(Point(1, 0.25, 1.5, 120))
    for done in range(2, 12):
        watch.now += 2
        teller.note(done)
    assert told(tmp_path) == TrainingProgress(
        round=11, rounds=100, accuracy=0.25, loss=1.5, images=120, seconds_left=2 * 89, written=1520.0
    )
    assert lines[-1] == "round 10 of 100, test accuracy 25.0 % and loss 1.5 (120 images), about 3 min 0 s left"


def test_the_file_is_written_at_most_once_per_second(tmp_path: Path, file: Path) -> None:
    watch, lines = Watch(), list[str]()
    teller = Teller(file, 1000, [], watch, lines.append)
    seen = set()
    for done in range(1, 31):
        watch.now += 0.1
        teller.note(done)
        seen.add(told(tmp_path).round)
    assert 3 <= len(seen) <= 4
    assert not list(file.parent.glob(".*.part"))


def test_the_log_has_ten_lines_or_one_per_minute(file: Path) -> None:
    watch = Watch()
    for pause, expected in ((0.001, 10), (40.0, 50)):
        lines = list[str]()
        teller = Teller(file, 100, [], watch, lines.append)
        for done in range(1, 101):
            watch.now += pause
            teller.note(done)
        assert abs(len(lines) - expected) <= 5
        assert lines[-1].startswith("round 100 of 100")


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path, file: Path) -> None:
    watch = Watch()
    teller = Teller(file, 10, [Point(1, 0.1, float("nan"), 50)], watch, lambda line: None)
    watch.now += 5
    teller.note(2)
    assert told(tmp_path).loss is None
    assert told(tmp_path).accuracy == 0.1


def test_nothing_is_left_behind(tmp_path: Path, file: Path) -> None:
    teller = Teller(file, 10, [], Watch(), lambda line: None)
    assert file.exists()
    teller.end()
    assert read_progress(tmp_path, [KEY]) == {}


def test_a_training_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "trainings").write_text("a file where a folder should be")
    watch, lines = Watch(), list[str]()
    teller = Teller(progress_file(tmp_path / "trainings" / KEY), 2, [], watch, lines.append)
    watch.now += 5
    teller.note(1)
    teller.end()
    assert lines == ["round 1 of 2"]


def test_a_damaged_file_says_nothing(tmp_path: Path, file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"round": "many"')
    assert read_progress(tmp_path, [KEY, "b" * 64]) == {}
