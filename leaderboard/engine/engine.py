"""Runs a plan job by job. A cell that dies, hangs or raises costs one record and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from leakboard.core.files import write_text
from leakboard.leaderboard.cells.checkpoints import remove_checkpoints
from leakboard.leaderboard.cells.train import load_summary
from leakboard.leaderboard.engine.executors.base import End, Executor
from leakboard.leaderboard.engine.schedule import control_first, first_results, longest_first
from leakboard.leaderboard.engine.state import StateFile
from leakboard.leaderboard.engine.worker import failure_file
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Plan
from leakboard.leaderboard.records.provenance import provenance
from leakboard.leaderboard.records.record import NO_TRAINING, Record, Status

#: at most this many characters of a failed training's reason are read
LONGEST_REASON = 20_000
BROKEN: tuple[Status, ...] = ("failed", "timeout", "crashed")


@dataclass
class Report:
    """What a run did: cells by status. `kept` cells had a record before, `unwritten` ones could not write theirs."""

    counts: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    trained: int = 0
    unwritten: int = 0

    @property
    def broken(self) -> int:
        """How many cells did not work."""
        return sum(self.counts.get(status, 0) for status in BROKEN) + self.unwritten


def read_record(job: Job) -> Record | None:
    """The record of a cell; None if there is none."""
    try:
        return Record.model_validate_json(job.record_file.read_text())
    except (OSError, ValueError):
        return None


class Engine:
    """Runs a plan: trainings before the cells that need them, and one job per slot at a time."""

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        tell: Callable[[Engine, str], None],
        retry_failed: bool = False,
        headline: Callable[[Record], str] = lambda record: "",
    ) -> None:
        """`headline` tells the main score of a record in one short line; empty where it has none."""
        self.plan = plan
        self.executor = executor
        self.tell = tell
        self.headline = headline
        self.report = Report()
        self.state = StateFile(Path(plan.trainings[0].run), executor)
        self.waiting = [job for job in plan.cells if not self._finished(job, retry_failed)]
        needed = {job.training_key for job in self.waiting}
        self.trainings = [j for j in plan.trainings if j.training_key in needed and not j.is_trained]
        self.replays = {job.training_key for job in self.trainings if job.must_be_replayed}
        self.total = len(self.waiting) + len(self.trainings)
        self.done = 0
        self.seconds: Mapping[str, float] = {}
        self.expected = 0.0
        self.first: list[Job] = []
        for job in self.trainings:
            failure_file(job).unlink(missing_ok=True)
        for job in plan.trainings:
            if job.training_folder.is_dir():  # killed between its end and this
                remove_checkpoints(job.training_folder)

    def _finished(self, job: Job, retry_failed: bool) -> bool:
        record = read_record(job)
        if record is None or (retry_failed and record.status in BROKEN):
            return False
        self.report.kept += 1
        self.report.counts[record.status] = self.report.counts.get(record.status, 0) + 1
        return True

    def order(self, seconds: Mapping[str, float]) -> None:
        """Put the longest jobs first, by these estimates. Jobs without an estimate keep the order of the plan.

        The control is trained first, and a few quick attacks on it follow at once: nobody waits long for a result.
        """
        seconds = {key: value for key, value in seconds.items() if key not in self.replays}  # these take moments
        self.seconds = seconds
        self.expected = sum(seconds.get(job.key or job.training_key, 0.0) for job in (*self.trainings, *self.waiting))
        self.waiting = longest_first(self.waiting, seconds)
        self.trainings = control_first(longest_first(self.trainings, seconds), self.plan)
        self.first = first_results(self.waiting, self.plan.suite.control, seconds)

    def run(self, look: Callable[[], Mapping[str, float] | None] = lambda: None) -> Report:
        """Run everything that is missing, in the best order as soon as `look` returns estimates of the seconds.

        Ctrl-C ends the running processes and leaves no half-written file.
        """
        try:
            while self.waiting or self.trainings or self.executor.running:
                if (seconds := look()) is not None:
                    self.order(seconds)
                self._start()
                if self.executor.running:
                    for end in self.executor.wait():
                        self._ended(end)
                self.tell(self, "")
        finally:
            self.executor.stop()
            self.state.note(())
        return self.report

    def _start(self) -> None:
        while len(self.executor.running) < self.executor.slots:
            job = self._next()
            if job is None:
                return
            if job.cell is not None:
                job.record_file.unlink(missing_ok=True)  # the record of a failed try must not pass for the new one
            self.executor.start(job)
            self.state.note(self.executor.running)
            self.tell(self, "")

    def _next(self) -> Job | None:
        """A quick cell of the control, the next training, or else a cell whose training is finished.

        Cells of a failed training are settled here.
        """
        early = next((job for job in self.first if job.is_trained), None)
        if early is not None:
            self.first.remove(early)
            self.waiting.remove(early)
            return early
        if self.trainings:
            return self.trainings.pop(0)
        busy = {running.job.training_key for running in self.executor.running if running.job.cell is None}
        for job in list(self.waiting):
            if job.is_trained:
                self.waiting.remove(job)
                self.first = [other for other in self.first if other is not job]
                return job
            if job.training_key not in busy:
                self.waiting.remove(job)
                self.first = [other for other in self.first if other is not job]
                self._settle(job, "failed", f"{NO_TRAINING}: {_first_line(job)}")
        return None

    def _ended(self, end: End) -> None:
        self.state.note(self.executor.running)
        if end.job.cell is None:
            self._trained(end)
            return
        record = read_record(end.job)
        if record is None:
            self._settle(end.job, end.status, end.reason)
        else:
            self._count(end.job, record)

    def _trained(self, end: End) -> None:
        job, self.done = end.job, self.done + 1
        if job.is_trained:
            self.report.trained += job.training_key not in self.replays
            self.tell(self, _trained_line(job, replayed=job.training_key in self.replays))
            return
        try:
            if not failure_file(job).exists():
                write_text(failure_file(job), end.reason + "\n")
        except OSError as error:
            self.tell(self, f"failed   {job.title}: {end.reason} ({error.strerror})")
        else:
            status = "timeout" if end.status == "timeout" else "failed"
            cells = sum(other.training_key == job.training_key for other in self.waiting)
            self.tell(self, f"{status:8} {job.title} (with its {cells} cells): {_first_line(job)}")

    def _settle(self, job: Job, status: Status, reason: str) -> None:
        """Write the record for a cell that left none."""
        assert job.cell is not None
        try:
            summary = load_summary(job.training_folder) if job.training_folder.is_dir() else None
        except (OSError, ValueError):  # a damaged training must not end the run
            summary = None
        record = Record(
            key=job.key,
            ingredients=job.ingredients,
            cell=job.cell,
            status=status,
            reason=reason,
            training=summary,
            provenance=provenance(job.device, job.data_digest),
        )
        try:
            write_text(job.record_file, record.to_json())
        except OSError as error:
            self.done += 1
            self.report.unwritten += 1
            self.tell(self, f"no record {job.title}: {reason}; it cannot be written: {error.strerror}")
        else:
            self._count(job, record)

    def _count(self, job: Job, record: Record) -> None:
        self.done += 1
        self.report.counts[record.status] = self.report.counts.get(record.status, 0) + 1
        reason = f": {record.reason}" if record.reason else ""
        told = self.headline(record) or f"{record.status:8} {job.title}{reason}"
        # the line of a failed training speaks for its cells
        self.tell(self, "" if record.reason.startswith(NO_TRAINING) else told)


def _trained_line(job: Job, *, replayed: bool) -> str:
    """A finished training: the defense and its accuracy, where that was measured."""
    if replayed:
        return f"ok       replayed: {job.title}"
    try:
        accuracy = load_summary(job.training_folder).accuracy
    except (OSError, ValueError):  # a damaged training must not end the run; its cells will tell
        accuracy = None
    if accuracy is None or job.training.active:
        return f"ok       {job.title}"
    return f"{job.training.defense.label}: trained, {100 * accuracy:.1f} % accuracy (seed {job.training.seed})"


def _first_line(job: Job) -> str:
    try:
        with failure_file(job).open(errors="replace") as file:  # the defense's own process wrote this file
            return file.readline(LONGEST_REASON).rstrip("\n")
    except OSError:
        return "the reason is lost"
