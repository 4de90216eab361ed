"""Jobs on this machine: one process a job, from a fork server, with a limit of time and memory each."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import ClassVar

from core.errors import UserError
from core.registry import ROOT
from leaderboard.executors.base import PATIENCE, End, Executor, Running
from leaderboard.executors.memory import GIB, resident
from leaderboard.jobs import Job
from leaderboard.processes import context
from leaderboard.sandbox import open_cage
from leaderboard.worker import UNWRITTEN, log_file, work

#: what multiprocessing says of a process whose fork server died: it may well live on
ORPHANED = 255
#: how often a process is tried to be started
STARTS = 3
#: what processes print that have no log of their own yet
OTHER_PRINTS = "logs/processes.log"


@dataclass
class Started(Running):
    """A job in its process, and the process of its attack."""

    process: BaseProcess | None = None
    attack: BaseProcess | None = None
    begun: float = 0.0

    @property
    def memory(self) -> int:
        """Bytes that the job holds."""
        return sum(resident(process.pid or 0) for process in (self.process, self.attack) if process is not None)

    def end(self) -> None:
        """End the process and, with it, its attack's, and whatever they forked; all are gone when this returns."""
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
    """As many processes at once as there are workers; a job over its time or its memory is killed."""

    name: ClassVar[str] = "local"

    def __init__(self, workers: int, memory_limit: float) -> None:
        self.slots = workers
        self.memory_limit = memory_limit
        self._running: list[Started] = []

    @property
    def running(self) -> Sequence[Started]:
        """The jobs under way."""
        return self._running

    def start(self, job: Job) -> None:
        """Start the job's processes; where the fork server is killed in that very moment, from a new one."""
        for left in reversed(range(STARTS)):
            try:
                self._running.append(_start(job))
                return
            except (OSError, EOFError) as error:
                if not left:
                    raise UserError(f"No process could be started: {error or type(error).__name__}.") from None
                time.sleep(PATIENCE)

    def wait(self) -> list[End]:
        """Those that ended or went over a limit."""
        wait([r.process.sentinel for r in self._running if r.process is not None], timeout=PATIENCE)
        ends = []
        for running in list(self._running):
            end = self._end_of(running)
            if end is not None:
                self._running.remove(running)
                running.end()
                ends.append(end)
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
    """Start the job's process and, for a cell, the one that its attack will run in."""
    start_fork_server(Path(job.run))
    attack, cage = open_cage() if job.cell is not None else (None, None)
    try:
        process = context().Process(target=work, args=(job.model_dump_json(), cage))  # type: ignore[attr-defined]
        process.start()
    finally:
        if cage is not None:
            cage.close()  # the worker has its own handles: ours would keep the attack alive after it
    return Started(job, process=process, attack=attack, begun=time.monotonic())


def start_fork_server(run: Path) -> None:
    """Make sure that the fork server runs; where it was killed, a new one is started.

    It is started with Ctrl-C held back, which so reaches neither it nor its children: ending them is the engine's
    affair. And it must find our modules wherever the command was called, or each child would import them anew.
    What it and its children print before they have a log of their own goes to `OTHER_PRINTS` of the run: the traceback
    of a process whose pipe broke because another was killed is no news for the terminal.
    """
    if context().get_start_method() != "forkserver":
        return
    before, path = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([path] if path else [])])
    try:
        with _printing_into(run / OTHER_PRINTS):
            multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _printing_into(log: Path) -> Iterator[None]:
    """What is started in the block prints to the end of a file; nowhere, where that cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    terminal: dict[int, int] = {}
    try:
        for stream in (1, 2):
            with suppress(OSError):  # a stream that the caller has closed stays so
                terminal[stream] = os.dup(stream)
                os.dup2(file, stream)
        yield
    finally:
        for stream, before in terminal.items():
            os.dup2(before, stream)
            os.close(before)
        os.close(file)
