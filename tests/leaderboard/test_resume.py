"""Killed at any moment and started again: the same records, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.registry import ROOT
from leaderboard.fork_server import OTHER_PRINTS
from tests.leaderboard.runs import TINY_CELLS, call, comparable


def start(suite: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    """The real command line in a process group of its own."""
    command = [sys.executable, str(ROOT / "run_benchmark.py"), "run", "--suite", str(suite), "--out", str(folder)]
    return subprocess.Popen(
        [*command, "--workers", "1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=folder.parent,
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """Tests that run in the background of a shell ignore Ctrl-C, and so would all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finished(folder: Path) -> list[Path]:
    return sorted((folder / "records").glob("*.json"))


def wait_until(condition: Callable[[], bool], seconds: float = 240) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.01)


def group_members(group: int) -> list[str]:
    """The processes of a session that still live: workers have process groups of their own within the engine's."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_group = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.slow
def test_a_killed_and_an_interrupted_run_go_on(tiny_suite: Path, tiny_run: Path, tmp_path: Path) -> None:
    for attempt in range(5):  # on a busy machine a run may be over before it can be interrupted: then once more
        folder = tmp_path / f"run{attempt}"
        if (after_stop := interrupted(tiny_suite, folder)) is not None:
            break
    else:
        pytest.fail("five runs were over before they could be interrupted")
    # a record that was cut off by a crash of the machine counts as none
    after_stop[0].write_text(after_stop[0].read_text()[:200])

    outcome = call("run", "--suite", tiny_suite, "--out", folder)

    assert outcome.code == 0
    assert f"{TINY_CELLS} cells, {len(after_stop) - 1} already there" in outcome.began
    assert comparable(folder) == comparable(tiny_run)
    assert list(folder.rglob("*.part")) == []


def started_since(folder: Path, moment: int) -> bool:
    """Whether a job of the run has begun its log since then."""
    logs = (path for path in (folder / "logs").glob("*") if path.name != Path(OTHER_PRINTS).name)
    return any(path.stat().st_mtime_ns > moment for path in logs)


def interrupted(suite: Path, folder: Path) -> list[Path] | None:
    """The records of a run that was killed, started again and interrupted; None where it was too fast for that."""
    # killed after its first record: everything that it started ends with it
    killed = start(suite, folder)
    wait_until(lambda: len(finished(folder)) >= 1 or killed.poll() is not None)
    killed.kill()
    wait_until(lambda: not group_members(killed.pid), seconds=60)
    killed.communicate()
    after_kill = len(finished(folder))
    assert 1 <= after_kill <= TINY_CELLS
    # what a kill in the middle of a write leaves behind
    (folder / "records" / ".half.json.999999999.part").write_text("{")
    (folder / "trainings" / ".half.999999999.part").mkdir()
    kept = {path.name: path.stat().st_mtime_ns for path in finished(folder)}

    # started again and stopped by Ctrl-C, which the terminal sends to the whole group
    begun = time.time_ns()
    stopped = start(suite, folder)
    wait_until(lambda: started_since(folder, begun) or stopped.poll() is not None)
    os.killpg(stopped.pid, signal.SIGINT)
    _, err = stopped.communicate(timeout=300)
    if stopped.returncode == 0:
        return None
    assert stopped.returncode == 130
    assert "Stopped. What was finished is kept" in err
    assert "Traceback" not in err
    wait_until(lambda: not group_members(stopped.pid), seconds=60)
    after_stop = finished(folder)
    assert after_kill <= len(after_stop) < TINY_CELLS
    assert {path.name: path.stat().st_mtime_ns for path in after_stop if path.name in kept} == kept
    return after_stop
