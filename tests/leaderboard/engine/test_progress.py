"""Progress: lines for a log, a bar for a terminal, nothing where nobody looks."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakboard.leaderboard.engine.engine import Engine
from leakboard.leaderboard.engine.progress import SHOWN, Progress


class Screen(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def engine(done: int, *titles: str) -> Engine:
    running = [SimpleNamespace(job=SimpleNamespace(title=title), since=0.0) for title in titles]
    made: Any = SimpleNamespace(done=done, total=4, executor=SimpleNamespace(running=running))
    return cast(Engine, made)


def told(stream: io.StringIO, *titles: str) -> str:
    progress = Progress(stream)
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
    assert "1/4 done, about" in text
    assert "training [31m [red]x[/red]" in text
    assert "and 1 more" in text
    assert f"job {SHOWN - 1}" not in text
    assert "\x1b[31m" not in shown
