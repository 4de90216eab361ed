"""What a run has done and what is left, read from its folder: while it goes on, and after it was stopped or killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from leakboard.core.terminal import plain
from leakboard.leaderboard.cells.training_progress import duration
from leakboard.leaderboard.engine.engine import BROKEN, read_record
from leakboard.leaderboard.engine.state import EngineState, is_worked_on, read_state, running_trainings
from leakboard.leaderboard.engine.store import describe_size
from leakboard.leaderboard.planning.estimate import OVERHEAD
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.run_folder import RunFolder, open_run
from leakboard.leaderboard.records.record import Record

#: how many failures are told
FAILURES = 5
#: so many finished jobs of a kind tell how far the estimate is off
ENOUGH = 3


def describe(folder: Path) -> str:
    """The status of a run, for the terminal."""
    run = open_run(folder)
    alive, state = is_worked_on(folder), read_state(folder)
    records = {job.key: record for job in run.jobs if (record := read_record(job)) is not None}
    trainings = {job.training_key: job for job in run.jobs}
    trained = {key for key, job in trainings.items() if job.training_folder.is_dir()}
    left = [job for job in run.jobs if job.key not in records]
    counts = Counter(record.status for record in records.values())
    by_status = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    lines = [
        f"{run.file.suite} in {folder}: {_state(alive, state, len(left))}",
        f"  trainings  {len(trained)} of {len(trainings)}",
        f"  cells      {len(records)} of {len(run.jobs)}" + (f": {by_status}" if by_status else ""),
    ]
    lines.append(f"  on disk    {describe_size(folder)}")
    if left:
        guess = seconds_left(run, records, left, trained, alive, state)
        workers = state.workers if state is not None else 1
        lines.append(f"  left       {len(left)} cells" + ("" if guess is None else f", {_about(guess, workers)}"))
    if state is not None and state.running:
        lines.append("running:" if alive else "were running when it was killed:")
        progress = running_trainings(folder, {job.key: job.since for job in state.running})
        for job in state.running:
            elapsed = f"{duration(time.time() - job.since):>9}  " if alive else ""
            said = f": {progress[job.key].words(alive)}" if job.key in progress else ""
            lines.append(f"  {elapsed}{job.title}{said}")
    failures = last_failures(run, records)
    if failures:
        lines += ["last failures:", *(f"  {line}" for line in failures)]
    if left and not alive:
        lines.append("The same `run` command goes on from here.")
    elif counts.keys() & set(BROKEN) and not alive:
        lines.append("`run --retry-failed` computes the failed ones again.")
    return "\n".join(plain(line) for line in lines)  # reasons and names are other people's


def _state(alive: bool, state: EngineState | None, left: int) -> str:
    if not alive:
        return "finished" if not left else "stopped"
    if state is None:
        return "running"
    who = f"process {state.process} on {state.host}, {state.executor}, {state.workers} workers"
    return f"running for {duration(time.time() - state.started)} ({who})"


def seconds_left(
    run: RunFolder,
    records: Mapping[str, Record],
    left: Iterable[Job],
    trained: set[str],
    alive: bool,
    state: EngineState | None,
) -> float | None:
    """Seconds of work left: the estimate of the plan, corrected by what finished jobs took; None where there is none.

    Times of trainings and of cells are corrected apart: encryption is in no estimate of a training.
    """
    guess = run.file.seconds
    if not guess:
        return None
    took = {key: record.cost.wall_seconds + OVERHEAD for key, record in records.items() if record.cost is not None}
    trainings = {r.training.key: r.training.wall_seconds for r in records.values() if r.training is not None}
    waiting = [job.key for job in left]
    missing = {job.training_key for job in left} - trained
    seconds = {key: guess.get(key, OVERHEAD) * _factor(guess, took) for key in waiting}
    seconds |= {key: guess.get(key, OVERHEAD) * _factor(guess, trainings) for key in missing}
    if alive and state is not None:
        progress = running_trainings(run.folder, {job.key: job.since for job in state.running})
        for job in state.running:
            if job.key in seconds:
                said = progress[job.key].seconds_left if job.key in progress else None
                guessed = seconds[job.key] - (time.time() - job.since)
                seconds[job.key] = max(0.0, guessed if said is None else said)
    return sum(seconds.values())


def _factor(guess: Mapping[str, float], took: Mapping[str, float]) -> float:
    """How much longer jobs take than was guessed; 1 while too few are done to tell."""
    known = [key for key in took if key in guess]
    return sum(took[key] for key in known) / sum(guess[key] for key in known) if len(known) >= ENOUGH else 1.0


def last_failures(run: RunFolder, records: Mapping[str, Record]) -> list[str]:
    """The newest reasons for which cells did not work, each told once."""
    broken = [job for job in run.jobs if job.key in records and records[job.key].status in BROKEN]
    broken.sort(key=_written, reverse=True)
    reasons: dict[tuple[str, str], list[Job]] = {}
    for job in broken:
        record = records[job.key]
        reasons.setdefault((record.status, record.reason), []).append(job)
    lines = []
    for (status, reason), jobs in list(reasons.items())[:FAILURES]:
        others = f" (and {len(jobs) - 1} more)" if len(jobs) > 1 else ""
        lines.append(f"{status:8} {jobs[0].title}{others}: {reason}")
    return lines


def _written(job: Job) -> float:
    try:
        return job.record_file.stat().st_mtime
    except OSError:
        return 0.0


def _about(seconds: float, workers: int) -> str:
    many = f" with {workers} workers" if workers > 1 else ""
    return f"about {duration(seconds / workers)}{many}"
