"""Jobs on this machine: one process per job, from a fork server, each with a limit of time and memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import ClassVar

from leakboard.core.errors import UserError
from leakboard.leaderboard.cells.attack_process import start_attack_process
from leakboard.leaderboard.cells.fork_server import start_fork_server
from leakboard.leaderboard.cells.processes import context
from leakboard.leaderboard.engine.executors.base import PATIENCE, End, Executor, Running
from leakboard.leaderboard.engine.executors.logs import trim_log
from leakboard.leaderboard.engine.executors.memory import GIB, resident
from leakboard.leaderboard.engine.worker import UNWRITTEN, log_file, work
from leakboard.leaderboard.planning.jobs import Job

#: exit code that multiprocessing reports if the fork server died; the process itself may still run
ORPHANED = 255
#: how many times the start of a process is tried
STARTS = 3


@dataclass
class Started(Running):
    """A job with its process and the process of its attack."""

    process: BaseProcess | None = None
    attack: BaseProcess | None = None
    begun: float = 0.0

    @property
    def memory(self) -> int:
        """Bytes of memory that the job uses."""
        return sum(resident(process.pid or 0) for process in (self.process, self.attack) if process is not None)

    def end(self) -> None:
        """End the process, its attack's process, and everything they forked. All are gone when this returns."""
        for process in (self.process, self.attack):
            if process is not None and process.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()
                if process.exitcode == ORPHANED:
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)


class LocalExecutor(Executor):
    """One process per worker at a time. A job that exceeds its time or memory is killed."""

    name: ClassVar[str] = "local"

    def __init__(self, workers: int, memory_limit: float) -> None:
        self.slots = workers
        self.memory_limit = memory_limit
        self._running: list[Started] = []

    @property
    def running(self) -> Sequence[Started]:
        """The running jobs."""
        return self._running

    def start(self, job: Job) -> None:
        """Start the job's processes; if the fork server is killed at that moment, from a new one."""
        for left in reversed(range(STARTS)):
            try:
                self._running.append(_start(job))
                return
            except (OSError, EOFError) as error:
                if not left:
                    raise UserError(f"No process could be started: {error or type(error).__name__}.") from None
                time.sleep(PATIENCE)

    def wait(self) -> list[End]:
        """Return the jobs that ended or exceeded a limit."""
        wait([r.process.sentinel for r in self._running if r.process is not None], timeout=PATIENCE)
        ends = []
        for running in list(self._running):
            end = self._end_of(running)
            if end is not None:
                self._running.remove(running)
                running.end()
                ends.append(end)
            trim_log(log_file(running.job))
        return ends

    def _end_of(self, running: Started) -> End | None:
        job, process = running.job, running.process
        assert process is not None
        if not process.is_alive():
            log = f"; see {log_file(job).name}" if job.cell is not None else ""
            if process.exitcode == UNWRITTEN:
                return End(job, "failed", f"its files could not be written: is the disk full or read-only?{log}")
            return End(job, "crashed", f"its process died (exit code {process.exitcode}){log}")
        if time.monotonic() - running.begun > job.time_limit:
            return End(job, "timeout", f"it took longer than its {job.time_limit:g} seconds")
        if running.memory > self.memory_limit * GIB:
            return End(job, "crashed", f"it took more than its {self.memory_limit:g} GiB of memory")
        return None

    def stop(self) -> None:
        """End all processes."""
        while self._running:
            self._running[-1].end()
            self._running.pop()


def _start(job: Job) -> Started:
    """Start the job's process and, for a cell, the process for its attack."""
    start_fork_server(Path(job.run))
    attack, pipes = start_attack_process() if job.cell is not None else (None, None)
    try:
        process = context().Process(target=work, args=(job.model_dump_json(), pipes))  # type: ignore[attr-defined]
        process.start()
    finally:
        if pipes is not None:
            pipes.close()  # the worker has its own handles; ours would keep the attack alive after the worker's end
    return Started(job, process=process, attack=attack, begun=time.monotonic())
