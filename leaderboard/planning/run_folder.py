"""The folder of a run: what it is made of, and which records belong to it now."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.core.plugins import Settings
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Plan
from leakboard.leaderboard.records.record import CellSpec, Record
from leakboard.leaderboard.records.validation import sound

MAX_RECORD_BYTES = 50_000_000
MAX_RUN_BYTES = 200_000_000
#: a `SHA-256` in hex; these become file names
KEY = re.compile(r"[0-9a-f]{64}")
LONGEST_FILE_NAME = 255
#: a suite's name is also a folder's name: it must not point anywhere else
SuiteName = Annotated[str, Field(max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class RunFile(Settings):
    """`run.json`: the description of this run. It holds locations, so it stays on the machine and is not published."""

    suite: SuiteName
    description: str = ""
    control: str
    utility_gate: float
    jobs: list[dict[str, Any]] = Field(description="the cells in the order of the plan")
    seconds: dict[str, float] = Field(default_factory=dict, description="estimated seconds by key of training or cell")
    settings: dict[str, Any] = Field(default_factory=dict, description="the whole suite; the run may be a part of it")


def save_run(folder: Path, plan: Plan, seconds: Mapping[str, float] | None = None) -> None:
    """Note which cells this run consists of; records of older code stay in the folder but are not part of it.

    Without `seconds`, the estimates that the file already holds stay.
    """
    suite, path = plan.suite, folder / "run.json"
    jobs = [job.model_dump(mode="json", exclude={"ingredients", "run"}) for job in plan.cells]
    run = RunFile(
        suite=suite.name,
        description=suite.description,
        control=suite.control,
        utility_gate=suite.utility_gate,
        jobs=jobs,
        seconds=_estimates(path) if seconds is None else dict(seconds),
        settings=suite.model_dump(mode="json"),
    )
    text = run.model_dump_json()
    try:
        unchanged = read_text(path, MAX_RUN_BYTES) == text
    except (OSError, ValueError, UserError):
        unchanged = False
    if not unchanged:  # an unchanged file keeps its time: a page that is newer need not be written again
        write_text(path, text)


def _estimates(path: Path) -> dict[str, float]:
    try:
        return RunFile.model_validate_json(read_text(path, MAX_RUN_BYTES)).seconds
    except (OSError, ValueError, UserError):
        return {}


def read_text(path: Path, most: int) -> str:
    """The text of a regular file of at most this many bytes (a device or a pipe may be endless)."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} cannot be read: it is not a file.")
    if path.stat().st_size > most:
        raise UserError(f"{path.name} is too large: at most {most} bytes are read.")
    return path.read_text(encoding="utf-8")


def read_record_file(path: Path) -> Record:
    """A record from a file; anything else is reported in one sentence."""
    try:
        return Record.model_validate_json(read_text(path, MAX_RECORD_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The record {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise UserError(f"{path.name} is not a record of this version: {where}: {problem['msg']}.") from None


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, opened."""

    folder: Path
    file: RunFile

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The cells of this run."""
        return tuple(Job.model_validate({**job, "run": str(self.folder)}) for job in self.file.jobs)

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The existing records of this run, in the order of its plan."""
        files = [job.record_file for job in self.jobs if job.record_file.exists()]
        return sound(((file, read_record_file(file)) for file in files), self.folder)

    @cached_property
    def waiting(self) -> tuple[CellSpec, ...]:
        """The cells of this run that have no record yet."""
        done = {record.key for record in self.records}
        return tuple(job.cell for job in self.jobs if job.cell is not None and job.key not in done)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about these records: how many others (older code or settings) are in the folder."""
        current = {job.record_file.name for job in self.jobs}
        older = sum(path.name not in current for path in (self.folder / "records").glob("*.json"))
        return (f"{older} records of older code or other settings are not shown.",) if older else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What every table of these records must say: which groups a published board lacks; nothing for a run."""
        return ()

    @property
    def warning(self) -> str:
        """What is wrong with these records as a whole, to be shown first; empty for a local run."""
        return ""

    @property
    def records_folder(self) -> Path:
        """The folder of records and reconstructions."""
        return self.folder / "records"

    @property
    def report_folder(self) -> Path:
        """The folder of the page."""
        return self.folder / "report"

    def job_of(self, record: Record) -> Job | None:
        """The job that made a record of this run."""
        return next((job for job in self.jobs if job.key == record.key), None)


def open_run(folder: Path) -> RunFolder:
    """Open a run's folder; one clear sentence where there is none."""
    path = folder / "run.json"
    try:
        opened = RunFolder(folder, RunFile.model_validate(json.loads(read_text(path, MAX_RUN_BYTES))))
        if not all(_names_files(job) for job in opened.jobs):  # read here, so that what cannot be used is refused here
            raise ValueError("a job whose keys cannot be names of files")
        return opened
    except FileNotFoundError:
        raise UserError(f"There is no run in {folder}: the command `run` makes one, or `lb.evaluate`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not the file of a run ({type(error).__name__}): run the suite again.") from None


def _names_files(job: Job) -> bool:
    """Whether a job is a cell, and its keys are such that its files are in the run's folder."""
    keys = (job.key, job.answer_key, job.training_key)
    return job.cell is not None and all(map(KEY.fullmatch, keys)) and len(job.record_file.name) < LONGEST_FILE_NAME
