"""What to do first: a few quick results, then the longest jobs, by an estimate that runs no code from outside."""

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
from leakboard.leaderboard.records.record import PRIOR

#: a cell that takes longer than this (seconds, estimated) is no quick result
QUICK = 15.0


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


def control_first(trainings: Sequence[Job], plan: Plan) -> list[Job]:
    """The same trainings, with the control's first one at the head: everything is compared with it."""
    control = (job for job in plan.trainings if job.training.defense.label == plan.suite.control)
    head = next((job.training_key for job in control if not job.training.active), "")
    return sorted(trainings, key=lambda job: job.training_key != head)  # the sort is stable


def first_results(cells: Sequence[Job], control: str, seconds: Mapping[str, float]) -> list[Job]:
    """The quickest attack on the control for each question, the quickest first.

    They run as soon as the control is trained, so that somebody who waits sees results while others train. Guesses
    without a message are left out, and so are cells of which no estimate is known.
    """
    quickest: dict[tuple[str, str, str], Job] = {}
    for job in sorted(cells, key=lambda job: seconds.get(job.key, QUICK)):
        cell = job.cell
        if cell is None or cell.training.defense.label != control or cell.training.active:
            continue
        if cell.attack.name != PRIOR and seconds.get(job.key, QUICK) < QUICK:
            quickest.setdefault((cell.goal, cell.about, cell.threat), job)
    return list(quickest.values())
