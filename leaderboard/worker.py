"""A worker process: one job, one thread, its prints into a log file."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from core import registry
from core.errors import UserError
from leaderboard.cell import run_cell
from leaderboard.files import write_text
from leaderboard.jobs import Job
from leaderboard.processes import one_thread
from leaderboard.training import run_training


def log_file(job: Job) -> Path:
    """Where the prints of a job go."""
    name = job.cell.slug if job.cell is not None else f"training-{job.training_key[:12]}"
    return Path(job.run) / "logs" / f"{name}.log"


def failure_file(job: Job) -> Path:
    """Where a failed training says why."""
    return Path(job.run) / "trainings" / f"{job.training_key}.failed.txt"


def work(text: str) -> None:
    """Do the job of this JSON text. A training that raises leaves its traceback in `failure_file`."""
    job = Job.model_validate_json(text)
    _redirect(log_file(job))
    one_thread()
    for file in job.plugin_files:
        registry.load_file(file)
    if job.cell is not None:
        run_cell(job)
        return
    try:
        run_training(job)
    except Exception as error:
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        write_text(failure_file(job), said + "\n" + traceback.format_exc())
        sys.exit(1)


def _redirect(path: Path) -> None:
    """Send the prints of plugins to a file: the terminal belongs to the progress."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
