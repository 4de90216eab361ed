"""What to do first: the costs of a plan's jobs, guessed in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from core import registry
from leaderboard.estimate import estimate
from leaderboard.executors.local import start_fork_server
from leaderboard.jobs import Job
from leaderboard.plan import Plan
from leaderboard.processes import context, obey_engine

#: seconds after which the order of the plan will do
LONGEST = 60.0


def costs(plan: Plan) -> dict[str, float]:
    """Estimated seconds by key; none where the estimate fails or takes too long.

    It runs a user's model, which may hang or end its process: the engine must not be that process.
    """
    start_fork_server(Path(plan.cells[0].run))
    ours, theirs = context().Pipe(duplex=False)
    process = context().Process(target=_estimate, args=(plan, theirs))  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    try:
        found: dict[str, float] = ours.recv() if ours.poll(LONGEST) else {}
    except (EOFError, OSError):
        found = {}
    finally:
        process.kill()
        process.join()
        ours.close()
    return found


def _estimate(plan: Plan, pipe: Connection) -> None:
    obey_engine()
    for file in {file for job in plan.trainings for file in job.plugin_files}:
        registry.load_file(file)
    pipe.send(estimate(plan))


def longest_first(jobs: Sequence[Job], seconds: Mapping[str, float]) -> list[Job]:
    """The jobs with the longest first; those of which nothing is known follow in the order of the plan."""
    return sorted(jobs, key=lambda job: -seconds.get(job.key or job.training_key, 0.0))
