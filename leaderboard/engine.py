"""Runs jobs in processes of their own: a cell that dies, hangs or raises costs one record and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from core.files import write_text
from leaderboard.jobs import Job
from leaderboard.plan import Plan
from leaderboard.processes import context
from leaderboard.provenance import provenance
from leaderboard.record import Record, Status
from leaderboard.sandbox import open_cage
from leaderboard.training import load_summary
from leaderboard.worker import failure_file, log_file, work

BROKEN: tuple[Status, ...] = ("failed", "timeout", "crashed")


@dataclass
class Running:
    """A job in its process."""

    job: Job
    process: Any
    started: float
    attack: Any = None

    def end(self) -> None:
        """End the process and, with it, its attack's; both are gone when this returns."""
        for process in (self.process, self.attack):
            if process is not None:
                process.kill()
                process.join()


@dataclass
class Report:
    """What a run did, by status; `kept` are cells that were there already."""

    counts: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    trained: int = 0

    @property
    def broken(self) -> int:
        """How many cells did not work."""
        return sum(self.counts.get(status, 0) for status in BROKEN)


def read_record(job: Job) -> Record | None:
    """The record of a cell, if it is there."""
    try:
        return Record.model_validate_json(job.record_file.read_text())
    except (OSError, ValueError):
        return None


class Engine:
    """Does a plan: trainings first where cells wait for them, as many processes at once as there are workers."""

    def __init__(
        self, plan: Plan, workers: int, tell: Callable[[Engine, str], None], retry_failed: bool = False
    ) -> None:
        self.plan = plan
        self.workers = workers
        self.tell = tell
        self.report = Report()
        self.running: list[Running] = []
        self.waiting = [job for job in plan.cells if not self._finished(job, retry_failed)]
        needed = {job.training_key for job in self.waiting}
        self.trainings = [j for j in plan.trainings if j.training_key in needed and not j.training_folder.is_dir()]
        self.total = len(self.waiting) + len(self.trainings)
        self.done = 0
        for job in self.trainings:
            failure_file(job).unlink(missing_ok=True)

    def _finished(self, job: Job, retry_failed: bool) -> bool:
        record = read_record(job)
        if record is None or (retry_failed and record.status in BROKEN):
            return False
        self.report.kept += 1
        self.report.counts[record.status] = self.report.counts.get(record.status, 0) + 1
        return True

    def run(self) -> Report:
        """Do everything that is not there yet. Ctrl-C ends the running processes and leaves no half-written file."""
        try:
            while self.waiting or self.trainings or self.running:
                self._start()
                self._wait()
        finally:
            for running in self.running:
                running.end()
        return self.report

    def _start(self) -> None:
        while len(self.running) < self.workers:
            job = self._next()
            if job is None:
                return
            attack, cage = open_cage() if job.cell is not None else (None, None)
            process = context().Process(target=work, args=(job.model_dump_json(), cage))  # type: ignore[attr-defined]
            process.start()
            if cage is not None:
                cage.close()  # the worker has its own handles: ours would keep the attack alive after it
            self.running.append(Running(job, process, time.monotonic(), attack))
            self.tell(self, "")

    def _next(self) -> Job | None:
        """The next training, else a cell whose training is there; cells of a failed training are settled here."""
        if self.trainings:
            return self.trainings.pop(0)
        busy = {running.job.training_key for running in self.running if running.job.cell is None}
        for job in list(self.waiting):
            if job.training_folder.is_dir():
                self.waiting.remove(job)
                return job
            if job.training_key not in busy:
                self.waiting.remove(job)
                self._settle(job, "failed", f"its training failed: {_first_line(job)}")
        return None

    def _wait(self) -> None:
        """Until a process ends or the nearest time limit is reached."""
        if not self.running:
            return
        now = time.monotonic()
        nearest = min(running.started + running.job.time_limit for running in self.running) - now
        wait([running.process.sentinel for running in self.running], timeout=min(max(nearest, 0), 1.0))
        for running in list(self.running):
            if not running.process.is_alive():
                self.running.remove(running)
                running.end()
                self._ended(running.job, running.process.exitcode)
            elif time.monotonic() - running.started > running.job.time_limit:
                self.running.remove(running)
                running.end()
                self._settle(running.job, "timeout", f"it took longer than its {running.job.time_limit:g} seconds")
        self.tell(self, "")

    def _ended(self, job: Job, exit_code: int | None) -> None:
        if job.cell is None:
            self.done += 1
            if job.training_folder.is_dir():
                self.report.trained += 1
                self.tell(self, f"ok       {job.title}")
            else:
                if not failure_file(job).exists():
                    write_text(failure_file(job), f"its process died (exit code {exit_code})\n")
                self.tell(self, f"failed   {job.title}: {_first_line(job)}")
            return
        record = read_record(job)
        if record is None:
            self._settle(job, "crashed", f"its process died (exit code {exit_code}); see {log_file(job).name}")
        else:
            self._count(job, record)

    def _settle(self, job: Job, status: Status, reason: str) -> None:
        """Write the record of a job that could not write its own."""
        if job.cell is None:
            write_text(failure_file(job), reason + "\n")
            self.done += 1
            self.tell(self, f"{status:8} {job.title}: {reason}")
            return
        summary = load_summary(job.training_folder) if job.training_folder.is_dir() else None
        record = Record(
            key=job.key,
            ingredients=job.ingredients,
            cell=job.cell,
            status=status,
            reason=reason,
            training=summary,
            provenance=provenance(job.device, job.data_digest),
        )
        write_text(job.record_file, record.to_json())
        self._count(job, record)

    def _count(self, job: Job, record: Record) -> None:
        self.done += 1
        self.report.counts[record.status] = self.report.counts.get(record.status, 0) + 1
        reason = f": {record.reason}" if record.reason else ""
        self.tell(self, f"{record.status:8} {job.title}{reason}")


def _first_line(job: Job) -> str:
    try:
        return failure_file(job).read_text().split("\n", 1)[0]
    except OSError:
        return "the reason is lost"
