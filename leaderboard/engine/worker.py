"""A worker process: it does one job with one thread and prints into a log file."""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.leaderboard.cells.attack_process import AttackPipes
from leakboard.leaderboard.cells.processes import limit_to_one_thread, obey_engine, print_into
from leakboard.leaderboard.cells.replayed import make_training
from leakboard.leaderboard.cells.run_cell import run_cell
from leakboard.leaderboard.planning.jobs import Job

#: exit code of a worker that could not write its files, and the errors that mean this
UNWRITTEN = 74
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


def log_file(job: Job) -> Path:
    """The file for the output of a job."""
    name = job.cell.slug if job.cell is not None else f"training-{job.training_key[:12]}"
    return Path(job.run) / "logs" / f"{name}.log"


def failure_file(job: Job) -> Path:
    """The file with the reason of a failed training."""
    return Path(job.run) / "trainings" / f"{job.training_key}.failed.txt"


def work(text: str, pipes: AttackPipes | None) -> None:
    """Do the job that this JSON text describes. A training that raises leaves its traceback in `failure_file`."""
    obey_engine()
    try:
        _work(Job.model_validate_json(text), pipes)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        traceback.print_exc()
        sys.exit(UNWRITTEN)


def _work(job: Job, pipes: AttackPipes | None) -> None:
    log = log_file(job)
    log.unlink(missing_ok=True)
    print_into(log)
    limit_to_one_thread()
    for file in job.plugin_files:
        registry.load_file(file)
    if job.cell is not None:
        assert pipes is not None
        run_cell(job, pipes, log)
        return
    try:
        make_training(job)
    except Exception as error:
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        write_text(failure_file(job), said + "\n" + traceback.format_exc())
        sys.exit(1)
