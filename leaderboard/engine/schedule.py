"""What to do first: the costs of a plan's jobs, guessed in a process of its own while the first of them run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from leakboard.core import registry
from leakboard.leaderboard.cells.fork_server import start_fork_server
from leakboard.leaderboard.cells.processes import context, obey_engine
from leakboard.leaderboard.planning.estimate import estimate
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Plan

#: seconds after which the order of the plan will do
LONGEST = 60.0
#: bytes of the longest estimate that is read: that of some 100,000 jobs
LARGEST = 10_000_000


class Guess:
    """Estimated seconds by key; none where the estimate fails or takes too long.

    It runs a user's model, which may hang or end its process: the engine must not be that process.
    """

    def __init__(self, plan: Plan) -> None:
        start_fork_server(Path(plan.cells[0].run))
        self._pipe, theirs = context().Pipe(duplex=False)
        self._process = context().Process(target=_estimate, args=(plan, theirs))  # type: ignore[attr-defined]
        with suppress(OSError, EOFError):  # the fork server was killed: then nothing comes through the pipe
            self._process.start()
        theirs.close()
        self._until = time.monotonic() + LONGEST

    def look(self, patience: float = 0.0) -> dict[str, float] | None:
        """The estimate, once, when it is there after so many seconds; None before, and ever after."""
        if self._pipe.closed:
            return None
        found: dict[str, float] | None = None
        with suppress(EOFError, OSError):
            if not self._pipe.poll(patience) and time.monotonic() < self._until:
                return None
            found = _read(self._pipe.recv_bytes(LARGEST)) if self._pipe.poll() else None
        self.end()
        return found

    def end(self) -> None:
        """Guess no more."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _estimate(plan: Plan, pipe: Connection) -> None:
    obey_engine()
    for file in {file for job in plan.trainings for file in job.plugin_files}:
        registry.load_file(file)
    pipe.send_bytes(json.dumps(estimate(plan)).encode())


def _read(content: bytes) -> dict[str, float] | None:
    """Seconds by key; None where it is anything else. A user's model ran there, so nothing of it is unpickled."""
    try:
        found = json.loads(content)
        fits = isinstance(found, dict) and all(map(_is_duration, found.values()))
        return {key: float(value) for key, value in found.items()} if fits else None
    except (ValueError, RecursionError, OverflowError):  # the last: a whole number of 400 digits
        return None


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def longest_first(jobs: Sequence[Job], seconds: Mapping[str, float]) -> list[Job]:
    """The jobs with the longest first; those of which nothing is known follow in the order of the plan."""
    return sorted(jobs, key=lambda job: -seconds.get(job.key or job.training_key, 0.0))
