"""`engine.json` and the lock in a run's folder: which engine works there, and on what. `status` reads them."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import Field, ValidationError

from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.core.plugins import Settings
from leakboard.leaderboard.cells.training_progress import TrainingProgress, read_progress
from leakboard.leaderboard.engine.executors.base import Executor, Running

#: how often a busy lock is tried, because `status` holds it for a moment
TRIES = 10


class UnderWay(Settings):
    """A job that has started and not ended."""

    key: str
    title: str
    since: float = Field(description="seconds since 1970")


class EngineState(Settings):
    """`engine.json`: the engine that works in a run's folder, or that did last."""

    process: int
    host: str
    executor: str
    workers: int
    started: float = Field(description="seconds since 1970")
    running: tuple[UnderWay, ...] = ()


class StateFile:
    """Keeps `engine.json` up to date. If it cannot be written, the run continues without it."""

    def __init__(self, folder: Path, executor: Executor) -> None:
        self.path = folder / "engine.json"
        self.state = EngineState(
            process=os.getpid(),
            host=socket.gethostname(),
            executor=executor.name,
            workers=executor.slots,
            started=time.time(),
        )

    def note(self, running: Sequence[Running]) -> None:
        """Write which jobs are running."""
        jobs = tuple(UnderWay(key=r.job.key or r.job.training_key, title=r.job.title, since=r.since) for r in running)
        with suppress(OSError):
            write_text(self.path, self.state.model_copy(update={"running": jobs}).model_dump_json())


def read_state(folder: Path) -> EngineState | None:
    """The state that the last engine wrote; None if there is none."""
    try:
        return EngineState.model_validate_json((folder / "engine.json").read_text())
    except (OSError, ValidationError):
        return None


def running_trainings(folder: Path, since: Mapping[str, float]) -> dict[str, TrainingProgress]:
    """How far running trainings are, by training key; `since` says when each was started (seconds since 1970).

    A training that has said nothing yet is left out. So is what an earlier, killed attempt said.
    """
    return {key: found for key, found in read_progress(folder, since).items() if found.written >= since[key]}


@contextmanager
def only_engine(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder where another engine works: both would compute the same cells.

    The lock is released when the process ends."""
    with _lock_file(folder).open("a") as file:
        for left in reversed(range(TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    state = read_state(folder)
                    who = f" (process {state.process} on {state.host})" if state else ""
                    raise UserError(
                        f"Another run{who} is working in {folder}: wait for it, or choose another folder with --out."
                    ) from None
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
        yield


def is_worked_on(folder: Path) -> bool:
    """Whether an engine is working in this folder now."""
    try:
        with _lock_file(folder).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _lock_file(folder: Path) -> Path:
    return folder / "engine.lock"
