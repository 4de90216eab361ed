"""Progress: lines for a log, a bar for a terminal, nothing where nobody looks."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakboard.leaderboard.engine.engine import Engine
from leakboard.leaderboard.engine.progress import SHOWN, Progress, time_left


class Screen(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def engine(done: int, *titles: str) -> Engine:
    running = [SimpleNamespace(job=SimpleNamespace(title=title), since=0.0) for title in titles]
    executor = SimpleNamespace(running=running, slots=2)
    made: Any = SimpleNamespace(done=done, total=4, executor=executor, seconds={}, trainings=[], waiting=[])
    return cast(Engine, made)


def told(stream: io.StringIO, *titles: str) -> str:
    progress = Progress(stream)
    progress.started -= 10.0  # one of four jobs took ten seconds
    progress.begin("tiny: 4 cells, 0 already there, 2 workers")
    progress.tell(engine(1, *titles), "ok       prior on [bold]mine[/bold]\x1b[31m")
    progress.tell(engine(1, *titles), "")
    if progress.live is not None:
        progress.live.refresh()
    progress.end()
    return stream.getvalue()


def test_a_log_gets_plain_lines() -> None:
    assert told(io.StringIO(), "training x") == (
        "tiny: 4 cells, 0 already there, 2 workers\n[1/4] ok       prior on [bold]mine[/bold] [31m\n"
    )


def test_nobody_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(None)
    progress.begin("begin")
    progress.tell(engine(1, "x"), "ok")
    progress.end()
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_a_terminal_gets_a_bar_and_the_running_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = told(Screen(), "training\x1b[31m [red]x[/red]", *(f"job {number}" for number in range(SHOWN)))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "[1/4] ok       prior on [bold]mine[/bold] [31m" in text  # neither markup nor escape codes work
    assert "1/4 done, about 30 s left" in text
    assert "training [31m [red]x[/red]" in text
    assert "and 1 more" in text
    assert f"job {SHOWN - 1}" not in text
    assert "\x1b[31m" not in shown


def test_a_running_job_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    progress = Progress(screen, detail=lambda running: "round 3 of 8" if running.job.title == "training x" else "")
    progress.begin("tiny")
    progress.tell(engine(1, "training x", "prior on x"), "")
    assert progress.live is not None
    progress.live.refresh()
    progress.end()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "training x, round 3 of 8" in text
    assert "prior on x," not in text


def test_time_left_is_the_estimate_corrected_by_what_is_done() -> None:
    def job(key: str) -> Any:
        return SimpleNamespace(key=key, training_key="")

    made = engine(3)
    vars(made).update(seconds={"a": 10.0, "b": 20.0, "c": 30.0}, expected=60.0, waiting=[job("c")])
    cast(Any, made.executor).running.append(SimpleNamespace(job=job("b"), since=95.0))
    # a took 25 of the 30 seconds on two slots, 2.5 times its estimate; b has run for 5 of 50, c will take 75
    assert time_left(made, elapsed=15.0, now=100.0) == pytest.approx((50 - 5 + 75) / 2)
    vars(made).update(done=1)  # one job tells too little
    assert time_left(made, elapsed=15.0, now=100.0) == pytest.approx((15 + 30) / 2)
    assert time_left(engine(0), elapsed=15.0, now=100.0) is None
    assert time_left(engine(1), elapsed=15.0, now=100.0) == pytest.approx(45.0)
