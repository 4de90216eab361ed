"""Jobs on a Ray cluster. A Ray task is a local executor on another machine, so a cell runs there as it does here.

All machines need the run's folder and the checkout under the same paths (docs/executors.md).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from leakboard.core.errors import UserError
from leakboard.core.registry import ROOT, importing_us
from leakboard.core.seeds import digest_of
from leakboard.core.sources import PACKAGES
from leakboard.leaderboard.engine.executors.base import PATIENCE, End, Executor, Running
from leakboard.leaderboard.engine.executors.local import LocalExecutor
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.records.provenance import versions
from leakboard.leaderboard.records.record import Status

#: a job whose Ray worker or machine dies is started this many times in total
STARTS = 3
#: seconds until a shared file system shows what another machine wrote
SLOWNESS = 60.0


@dataclass
class Sent(Running):
    """A job that was submitted to Ray."""

    task: Any = None
    starts: int = 1


class RayExecutor(Executor):
    """One Ray task per worker (0: one per CPU of the cluster), each with one CPU and a share of a GPU."""

    name: ClassVar[str] = "ray"

    def __init__(self, workers: int, memory_limit: float, gpus_per_cell: float) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run reports no usage to anybody
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default, 15, starves beside other programs
        try:
            import ray
        except ImportError:
            command = ".venv/bin/python -m pip install -r requirements-ray.txt"
            raise UserError(f"--executor ray needs Ray, which is not installed: `{command}`.") from None
        self.ray: Any = ray
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"--executor ray found no cluster: {error}") from None
        self.slots = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.memory_limit = memory_limit
        self.gpus_per_cell = gpus_per_cell
        self.code = code_digest()
        self._running: list[Sent] = []

    @property
    def running(self) -> Sequence[Sent]:
        """The submitted tasks, including those that wait for a free machine."""
        return self._running

    def start(self, job: Job) -> None:
        """Submit the job to Ray."""
        self._running.append(Sent(job, task=self._task(job)))

    def _task(self, job: Job) -> Any:
        share = self.gpus_per_cell if job.cell is not None or job.device != "cpu" else 0.0
        # a fork server keeps the environment of its start, so cells with a GPU need Ray workers of their own
        variables = {"PYTHONPATH": importing_us()["PYTHONPATH"], "LEAKBOARD_GPUS": f"{share:g}"}
        options = {"num_cpus": 1, "num_gpus": share, "max_retries": 0, "runtime_env": {"env_vars": variables}}
        task = self.ray.remote(work_here).options(**options)
        return task.remote(job.model_dump_json(), self.memory_limit, str(Path.cwd()), self.code)

    def wait(self) -> list[End]:
        """Return the jobs that ended. A job whose worker or machine died is started again, up to `STARTS` times."""
        ready, _ = self.ray.wait([sent.task for sent in self._running], timeout=PATIENCE)
        ends = []
        for sent in [sent for sent in self._running if sent.task in ready]:
            self._running.remove(sent)
            end = self._end_of(sent)
            if end is None:
                self._running.append(Sent(sent.job, task=self._task(sent.job), starts=sent.starts + 1))
            else:
                ends.append(end)
        return ends

    def _end_of(self, sent: Sent) -> End | None:
        """How a task ended; None if it must be started again."""
        errors = self.ray.exceptions
        try:
            status, reason, wrote = self.ray.get(sent.task)
        except errors.RayTaskError as error:  # raised by `work_here` itself
            return End(sent.job, "failed", f"its Ray task failed: {error.cause}")
        except errors.RayError as error:  # the worker, its machine or Ray itself died
            if has_result(sent.job):
                return End(sent.job, "crashed", "")  # it had finished before
            if sent.starts < STARTS:
                return None
            return End(sent.job, "crashed", f"its Ray worker died {STARTS} times ({type(error).__name__})")
        limit = time.monotonic() + SLOWNESS
        while wrote and not has_result(sent.job) and time.monotonic() < limit:
            time.sleep(PATIENCE)
        return End(sent.job, status, reason)

    def stop(self) -> None:
        """Cancel all tasks and leave the cluster. Their processes end with their Ray workers."""
        for sent in self._running:
            self.ray.cancel(sent.task, force=True)
        self._running.clear()
        self.ray.shutdown()


def has_result(job: Job) -> bool:
    """Whether this machine sees the job's record or training."""
    return job.record_file.exists() if job.cell is not None else job.is_trained


def work_here(text: str, memory_limit: float, folder: str, code: str) -> tuple[Status, str, bool]:
    """Do a job on this machine, inside a Ray task. Returns status, reason, and whether there is a result.

    The Ray worker itself reads no data: as in a local run, the job and its attack get processes from a fork server.
    """
    if code_digest() != code:
        raise UserError("this machine has other code or other package versions than the machine that planned the run")
    os.chdir(folder)  # a run may have relative paths
    sys.modules["__main__"].__dict__.pop("__file__", None)  # else every child would first run Ray's main file
    job = Job.model_validate_json(text)
    here = LocalExecutor(1, memory_limit)
    here.start(job)
    try:
        while not (ends := here.wait()):
            pass
    finally:
        here.stop()
    return ends[0].status, ends[0].reason, has_result(job)


def code_digest() -> str:
    """A digest of our code and of the versions of packages that affect numbers, as in a record's key."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    digests = {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return digest_of("code", digests, versions())
