"""What `run --dry-run` prints: each defense with its jobs, what is there already, and how long the rest may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leakboard.leaderboard.planning.defense_timing import with_defenses
from leakboard.leaderboard.planning.estimate import estimate
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Plan
from leakboard.leaderboard.planning.skips import sure_skip


def plan_text(plan: Plan, workers: int) -> str:
    """The plan, one paragraph per defense; to estimate the time, two rounds of each defense are tried."""
    seconds, untried = with_defenses(plan, estimate(plan))
    jobs = (*plan.trainings, *plan.cells)
    left = [job for job in jobs if not _is_there(job)]
    lines = [
        f"Suite {plan.suite.name}: {_count(len(plan.trainings), 'training')}, {_count(len(plan.cells), 'cell')}; "
        f"{len(jobs) - len(left)} of {len(jobs)} jobs are there already."
    ]
    for label in dict.fromkeys(job.training.defense.label for job in jobs):
        own = [job for job in jobs if job.training.defense.label == label]
        waiting = [job for job in own if not _is_there(job)]
        todo = f"{_told(_total(waiting, seconds))} to compute" if waiting else "nothing to compute"
        lines += ["", f"{label}: {todo}, {len(own) - len(waiting)} of {len(own)} jobs are there"]
        lines += [f"  {_told(seconds.get(_key(job))):>10}  {job.title}{_state(job)}" for job in own]
    share = f"with {_count(workers, 'worker')}"
    lines += ["", f"About {_told(_total(left, seconds) / workers)} {share} for what is not there yet;"]
    lines += [f"about {_told(_total(jobs, seconds) / workers)} if nothing were there."]
    unknown = sum(_key(job) not in seconds for job in left)
    if unknown:
        lines += [f"{_count(unknown, 'job')} of unknown length (?) not counted."]
    if untried:
        lines += [f"Of the trainings of {', '.join(untried)} only the gradients are counted: no round could be tried."]
    return "\n".join(lines)


def _key(job: Job) -> str:
    return job.key or job.training_key


def _is_there(job: Job) -> bool:
    return job.record_file.exists() if job.cell is not None else bool(job.published) or job.training_folder.is_dir()


def _state(job: Job) -> str:
    if _is_there(job):
        return "  (already there)"
    reason = sure_skip(job) if job.cell is not None else ""
    return f"  (will be skipped: {reason})" if reason else ""


def _total(jobs: Iterable[Job], seconds: Mapping[str, float]) -> float:
    return sum(seconds.get(_key(job), 0.0) for job in jobs)


def _told(seconds: float | None) -> str:
    """
    >>> [_told(seconds) for seconds in (None, 2.04, 90, 7200)]
    ['?', '2.0 s', '1.5 min', '2.0 h']
    """
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
