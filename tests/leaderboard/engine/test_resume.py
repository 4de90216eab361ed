"""Killed at any moment and started again: the same records, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from leakboard.core.registry import ROOT
from tests.leaderboard.plugin_texts import GATE
from tests.leaderboard.runs import HANG, TINY_CELLS, call, comparable, wait_until


def start(suite: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    """The real command line in a process group of its own."""
    command = [sys.executable, str(ROOT / "run_benchmark.py"), "run", "--suite", str(suite), "--out", str(folder)]
    return subprocess.Popen(
        [*command, *options],
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


@dataclass(frozen=True)
class Gated:
    """A run that cannot be over before it is stopped, however long that takes: one of its attacks waits."""

    suite: Path
    folder: Path
    plugin: Path
    reached: Path
    opened: Path

    def start(self) -> subprocess.Popen[str]:
        return start(self.suite, self.folder, "--workers", "2", "--plugin", str(self.plugin))


@pytest.fixture
def gated(tiny_suite: Path, tmp_path: Path) -> Gated:
    made = Gated(tiny_suite, *(tmp_path / name for name in ("run", "gate.py", "reached", "opened")))
    made.plugin.write_text(GATE.replace("REACHED", str(made.reached)).replace("OPEN", str(made.opened)))
    return made


@pytest.mark.slow
def test_a_killed_and_an_interrupted_run_go_on(gated: Gated, tiny_run: Path) -> None:
    after_stop = interrupted(gated)
    # a record that was cut off by a crash of the machine counts as none
    after_stop[0].write_text(after_stop[0].read_text()[:200])
    gated.opened.touch()

    outcome = call("run", "--suite", gated.suite, "--out", gated.folder, "--plugin", gated.plugin)

    assert outcome.code == 0
    assert f"{TINY_CELLS + 1} cells, {len(after_stop) - 1} already there" in outcome.began
    found = comparable(gated.folder)
    assert len(found) == TINY_CELLS + 1
    assert {name: record for name, record in found.items() if "gate" not in name} == comparable(tiny_run)
    assert list(gated.folder.rglob("*.part")) == []


def interrupted(gated: Gated) -> list[Path]:
    """The records of a run that was killed, started again and interrupted."""
    folder = gated.folder
    # killed after its first record: everything that it started ends with it
    killed = gated.start()
    wait_until(lambda: len(finished(folder)) >= 1 or killed.poll() is not None)
    killed.kill()
    wait_until(lambda: not group_members(killed.pid))
    _, err = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, err
    after_kill = len(finished(folder))
    assert 1 <= after_kill <= TINY_CELLS
    # what a kill in the middle of a write leaves behind
    (folder / "records" / ".half.json.999999999.part").write_text("{")
    (folder / "trainings" / ".half.999999999.part").mkdir()
    kept = {path.name: path.stat().st_mtime_ns for path in finished(folder)}
    gated.reached.unlink(missing_ok=True)

    # started again and stopped by Ctrl-C, which the terminal sends to the whole group
    stopped = gated.start()
    wait_until(lambda: gated.reached.exists() or stopped.poll() is not None)
    os.killpg(stopped.pid, signal.SIGINT)
    _, err = stopped.communicate(timeout=HANG)
    assert stopped.returncode == 130, err
    assert "Stopped. What was finished is kept" in err
    assert "Traceback" not in err
    wait_until(lambda: not group_members(stopped.pid))
    after_stop = finished(folder)
    assert after_kill <= len(after_stop) <= TINY_CELLS
    assert {path.name: path.stat().st_mtime_ns for path in after_stop if path.name in kept} == kept
    return after_stop
