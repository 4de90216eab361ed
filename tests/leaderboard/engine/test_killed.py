"""kill -9 at 20 random moments, and Ctrl-C twice at one more: the records are those of an undisturbed run.

`pytest -s` prints how often what was killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from leakboard.leaderboard.engine.executors.memory import PROC
from leakboard.leaderboard.engine.state import is_worked_on, read_state
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.engine.test_resume import finished, group_members, start
from tests.leaderboard.runs import HANG, TINY_CELLS, comparable, wait_until

#: whom each disturbance hits: a worker or an attack's process, the engine, the fork server that all come from
VICTIMS = {"worker": 14, "engine": 5, "fork server": 1, "Ctrl-C twice": 1}
#: seconds after which a disturbance comes at the latest, counted from when something runs
LATEST = 1.5
SEED = 20


def children(process: int) -> list[int]:
    found: list[int] = []
    for thread in (PROC / str(process) / "task").glob("*/children"):
        try:
            found += [int(child) for child in thread.read_text().split()]
        except OSError:
            continue
    return sorted(found)


def fork_server(engine: int) -> int | None:
    for child in children(engine):
        try:
            command = (PROC / str(child) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"multiprocessing.forkserver" in command:
            return child
    return None


def strike(victim: str, process: subprocess.Popen[str], lot: float) -> bool:
    """Disturb the run; False where there is nobody to hit any more."""
    server = fork_server(process.pid)
    workers = children(server) if server is not None else []
    targets = {"worker": workers, "engine": [process.pid], "fork server": [server] if server else []}
    try:
        if victim == "Ctrl-C twice":
            for _ in range(2):
                os.killpg(process.pid, signal.SIGINT)
                time.sleep(lot / 10)
        elif not targets[victim]:
            return False
        else:
            os.kill(targets[victim][int(lot * len(targets[victim]))], signal.SIGKILL)
    except ProcessLookupError:
        return False
    if victim in ("engine", "Ctrl-C twice"):
        _, err = process.communicate(timeout=HANG)
        if process.returncode not in (130, -signal.SIGKILL):
            return False  # it was over before
        assert "Traceback" not in err
        wait_until(lambda: not group_members(process.pid))
    return True


class Disturbed:
    """Runs of the tiny suite, one after another, each in a folder of its own and started until it is whole."""

    def __init__(self, suite: Path, home: Path) -> None:
        self.suite, self.home = suite, home
        self.folders = [home / "run0"]
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0

    @property
    def folder(self) -> Path:
        return self.folders[-1]

    def is_whole(self) -> bool:
        """Whether all records are there and good. Each file that is there must be a whole record, at any moment.

        A file may go between being listed and being read: the engine removes the record of a failed try.
        """
        records = []
        for path in finished(self.folder):
            with suppress(FileNotFoundError):
                records.append(Record.model_validate_json(path.read_text()))
        return len(records) == TINY_CELLS and all(record.status == "ok" for record in records)

    def begin(self) -> subprocess.Popen[str]:
        """A run that goes on: the one under way, or one more."""
        if self.process is not None and self.process.poll() is None:
            return self.process
        if self.process is not None:
            _, err = self.process.communicate()
            assert "Traceback" not in err, err
            if self.is_whole():
                self.folders.append(self.home / f"run{len(self.folders)}")
        self.starts += 1
        self.process = start(self.suite, self.folder, "--workers", "1", "--retry-failed")
        return self.process

    def wait_for_work(self, process: subprocess.Popen[str]) -> bool:
        """Wait until the engine has something running; False where it is over before."""

        def works() -> bool:
            state = read_state(self.folder)
            ours = state is not None and state.process == process.pid and bool(state.running)
            return (ours and is_worked_on(self.folder)) or process.poll() is not None

        wait_until(works)
        return process.poll() is None

    def finish(self) -> None:
        """Start the last run until it is whole."""
        for _ in range(5):
            if self.process is not None:
                _, err = self.process.communicate(timeout=HANG)
                assert "Traceback" not in err, err
            if self.is_whole():
                return
            self.starts += 1
            self.process = start(self.suite, self.folder, "--workers", "1", "--retry-failed")
        pytest.fail("it does not become whole")


@pytest.fixture
def disturbed(tiny_suite: Path, tmp_path: Path) -> Iterator[Disturbed]:
    made = Disturbed(tiny_suite, tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:  # the test failed
        made.process.kill()


@pytest.mark.slow
def test_kills_at_random_moments_change_no_record(disturbed: Disturbed, tiny_run: Path) -> None:
    lots = random.Random(SEED)
    victims = [victim for victim, count in VICTIMS.items() for _ in range(count)]
    lots.shuffle(victims)
    hit = Counter[str]()
    for victim in victims:
        delay, lot = lots.uniform(0, LATEST), lots.random()
        struck = False
        while not struck:
            process = disturbed.begin()
            if disturbed.wait_for_work(process):
                time.sleep(delay)
                struck = strike(victim, process, lot)
                disturbed.is_whole()
        hit[victim] += 1
    disturbed.finish()

    expected = comparable(tiny_run)
    assert len(expected) == TINY_CELLS
    for folder in disturbed.folders:
        assert len(finished(folder)) == TINY_CELLS  # none lost, none doubled
        assert comparable(folder) == expected
        assert len(list((folder / "trainings").iterdir())) == 1
        assert list(folder.rglob("*.part")) == []
    kinds = ", ".join(f"{count} {victim}" for victim, count in hit.items())
    compared = len(disturbed.folders) * TINY_CELLS
    print(f"\n{hit.total()} disturbances ({kinds}); {disturbed.starts} starts; {compared} records compared, all equal")
