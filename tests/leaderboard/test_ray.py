"""A real Ray on this machine, with two workers: the records of a local run, also when one worker is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.registry import ROOT
from leaderboard.executors.memory import PROC
from leaderboard.state import read_state
from tests.leaderboard.runs import TINY_CELLS, comparable
from tests.leaderboard.test_killed import children
from tests.leaderboard.test_resume import wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-ray.txt")


def ray_workers(driver: int) -> list[int]:
    """The Ray workers below a driver that do a job now: those with a job's process below them."""
    found, waiting = [], children(driver)
    while waiting:
        process = waiting.pop()
        waiting += children(process)
        try:
            title = (PROC / str(process) / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::work_here") and any(children(below) for below in children(process)):
            found.append(process)
    return sorted(found)


@pytest.mark.slow
def test_a_killed_ray_worker_costs_no_record(tiny_suite: Path, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, str(ROOT / "run_benchmark.py"), "run", "--suite", str(tiny_suite), "--out", str(folder)]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "--executor", "ray", "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": "local"},
    )
    try:
        # one of them is killed as soon as it has a job's process: first the training's
        wait_until(lambda: bool(ray_workers(process.pid)) or process.poll() is not None, seconds=900)
        victim = ray_workers(process.pid)[0]
        state = read_state(folder)
        assert state is not None
        assert (state.executor, state.workers) == ("ray", 2)
        os.kill(victim, signal.SIGKILL)
        out, _ = process.communicate(timeout=1800)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert len(list((folder / "records").glob("*.json"))) == TINY_CELLS
    assert comparable(folder) == comparable(tiny_run)
    assert list(folder.rglob("*.part")) == []
    print(f"\none of two Ray workers killed; {TINY_CELLS} records equal; {time.monotonic() - began:.0f} s")
