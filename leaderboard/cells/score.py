"""The score: the only place where the truth meets an attack's answer, after the attack has returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from leakboard.core import registry
from leakboard.leaderboard.cells.question import facts_of, pool_of
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.goals.question import Answer
from leakboard.leaderboard.planning.jobs import Job
from leakboard.metrics.base import Metric


def goal_of(job: Job) -> Goal:
    """The goal of a cell."""
    assert job.cell is not None
    return cast(Goal, registry.create("goal", job.cell.goal))


def score(job: Job, answer: Answer) -> dict[str, Any]:
    """The scores of an answer, as fields of the record. Called only after the attack has returned."""
    goal = goal_of(job)
    fields = goal.score(facts_of(job, pool_of(job)), answer, _metrics(job, goal.name))
    return {**fields, "reconstructions": job.answer_file.name} if goal.shows_answer else fields


def _metrics(job: Job, goal: str) -> list[Metric]:
    """All metrics of a goal, told where the LPIPS weights are, and where features of decoys may be kept.

    That folder is in the run's, which the attack's process may not open: features of decoys are as secret as decoys.
    """
    kept = str(Path(job.run) / "decoys")
    where = {"weights": job.locations.lpips_weights, "download": job.locations.download, "kept": kept}
    found: list[Metric] = []
    for name, entry in registry.entries("metric").items():
        if entry["goal"] == goal:
            given = {k: v for k, v in where.items() if k in entry["parameters"]}
            found.append(cast(Metric, registry.create("metric", name, given)))
    return found
