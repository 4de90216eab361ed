"""What to do first: the longest jobs, by an estimate that runs no code from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from leakboard.attacks.base import Attack
from leakboard.core import registry
from leakboard.federation.models.module import Module
from leakboard.leaderboard.planning.estimate import estimate
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Plan


def estimate_ours(plan: Plan) -> dict[str, float]:
    """Estimated seconds by key, of jobs whose network and attack are ours.

    To time a gradient is to run the network. A user's own network may hang or end its process, and the engine must not
    be that process: its jobs have no estimate.
    """
    trainings = tuple(job for job in plan.trainings if _is_ours(job))
    cells = tuple(job for job in plan.cells if _is_ours(job))
    return estimate(replace(plan, trainings=trainings, cells=cells))


def _is_ours(job: Job) -> bool:
    """Whether an estimate of this job runs our code alone."""
    if job.training.model.name == Module.name or _is_outside("model", job.training.model.name):
        return False
    if job.cell is None:
        return True
    name = job.cell.attack.name
    if _is_outside("attack", name):
        return False
    attack = cast(Attack, registry.create("attack", name, job.cell.attack.parameters))
    return not any(_is_outside("attack", other) for other in attack.runs())


def _is_outside(kind: str, name: str) -> bool:
    return registry.find(kind, name)["file"] in registry.loaded_files()


def longest_first(jobs: Sequence[Job], seconds: Mapping[str, float]) -> list[Job]:
    """The jobs with the longest first; those of which nothing is known follow in the order of the plan."""
    return sorted(jobs, key=lambda job: -seconds.get(job.key or job.training_key, 0.0))
