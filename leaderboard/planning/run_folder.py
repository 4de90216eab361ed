"""The folder of a run: the records that belong to it now, and the views that can be opened from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError
from safetensors import SafetensorError

from leakboard.core.errors import UserError, unknown_name
from leakboard.core.files import write_text
from leakboard.core.plugins import Settings
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Plan
from leakboard.leaderboard.records.record import CellSpec, Record
from leakboard.leaderboard.records.validation import sound
from leakboard.leaderboard.tables.table import Table

if TYPE_CHECKING:  # at run time only a request for a table loads what it needs
    from leakboard.leaderboard.ranking.leaderboards import Board

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


def save_run(folder: Path, plan: Plan, seconds: Mapping[str, float]) -> None:
    """Save which cells belong to this run; records of older code stay in the folder but are not part of it."""
    suite = plan.suite
    jobs = [job.model_dump(mode="json", exclude={"ingredients", "run"}) for job in plan.cells]
    run = RunFile(
        suite=suite.name,
        description=suite.description,
        control=suite.control,
        utility_gate=suite.utility_gate,
        jobs=jobs,
        seconds=dict(seconds),
    )
    write_text(folder / "run.json", run.model_dump_json())


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
class Run:
    """The opened folder of a run."""

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

    @cached_property
    def _boards(self) -> list[Board]:
        from leakboard.leaderboard.ranking.leaderboards import ranking_boards

        return ranking_boards(self.records, self.file.control, self.file.utility_gate, self.waiting)

    def boards(self) -> list[Board]:
        """The rankings of this run, with their evidence; computed once, for tables and page."""
        return self._boards

    def rankings(self) -> list[Table]:
        """The ranking tables of this run."""
        return [board.table for board in self.boards()]

    def job_of(self, record: Record) -> Job | None:
        """The job that made a record of this run."""
        return next((job for job in self.jobs if job.key == record.key), None)


def open_run(folder: Path) -> Run:
    """Open a run's folder; a `UserError` if there is none."""
    path = folder / "run.json"
    try:
        opened = Run(folder, RunFile.model_validate(json.loads(read_text(path, MAX_RUN_BYTES))))
        if not all(_names_files(job) for job in opened.jobs):  # read the jobs here, to refuse unusable ones here
            raise ValueError("the keys of a job cannot be file names")
        return opened
    except FileNotFoundError:
        raise UserError(
            f"There is no run in {folder}: `run_benchmark.py run` makes one; --out names its folder."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not the file of a run ({type(error).__name__}): run the suite again.") from None


def _names_files(job: Job) -> bool:
    """Whether a job is a cell, and its keys are such that its files are in the run's folder."""
    keys = (job.key, job.answer_key, job.training_key)
    return job.cell is not None and all(map(KEY.fullmatch, keys)) and len(job.record_file.name) < LONGEST_FILE_NAME


def load_view(run: str | Path, threat: str, *, defense: str = "", dataset: str = "", seed: int | None = None) -> Any:
    """The view of a threat on a stored training of a run, for a notebook: `load_view("runs/quick", "server")`.

    Without `defense`, `dataset` or `seed`, the first one of the run is taken. The threat `server:active` opens a
    training with a deviating server, every other threat an honest one.
    """
    from leakboard.datasets.loading import load_pool
    from leakboard.federation.settings import ObservedRounds, client_name
    from leakboard.federation.view import ACTIVE, parse_threat
    from leakboard.leaderboard.cells.train import open_view
    from leakboard.leaderboard.planning.public_settings import splits_of

    jobs = open_run(Path(run)).jobs
    for given, name, titles in (
        (defense, "defense", [job.training.defense.label for job in jobs]),
        (dataset, "dataset", [job.training.dataset.label for job in jobs]),
    ):
        if given and given not in titles:
            raise unknown_name(f"{name} in this run", given, sorted(set(titles)))
    fits = [
        job
        for job in jobs
        if defense in ("", job.training.defense.label)
        and dataset in ("", job.training.dataset.label)
        and seed in (None, job.training.seed)
        and job.training.active == (threat == ACTIVE)
        and job.training_folder.is_dir()
    ]
    if not fits:
        wanted = f"threat '{threat}', defense '{defense}', dataset '{dataset}', seed {seed}"
        raise UserError(f"No finished training in {run} fits {wanted}.")
    ObservedRounds.of_record(fits[0].training.observe).check_threat(threat)
    pool = load_pool(fits[0].make_dataset())
    shards = {client_name(i): pool.take(s) for i, s in enumerate(splits_of(fits[0], pool).shards)}
    asked = parse_threat(threat, len(shards))
    folder = fits[0].training_folder
    try:
        return open_view(folder, asked, shards)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        # all errors of a truncated or changed file, in JSON, safetensors or our own code
        raise UserError(f"The training in {folder} is damaged ({type(error).__name__}): run the suite again.") from None
