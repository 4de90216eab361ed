"""One record in words and pictures."""

from __future__ import annotations

from pathlib import Path

from leakboard.core.terminal import plain
from leakboard.leaderboard.page.images import originals, reconstructions
from leakboard.leaderboard.page.pictures import ascii_picture
from leakboard.leaderboard.planning.run_folder import open_run, read_record_file
from leakboard.leaderboard.records.known import goals
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.scope import all_targets


def show(record: str | Path, *, colour: bool = False) -> str:
    """A record's file, readable: the cell, its scores and cost, and its images as text."""
    path = Path(record)
    found = read_record_file(path)
    opened = open_run(path.parent.parent) if (path.parent.parent / "run.json").is_file() else None
    parts = [describe(found)]
    truth = originals(found, opened.job_of(found) if opened else None)
    rebuilt = reconstructions(found, path.parent, truth)
    for title, images in (("original", truth), ("reconstruction", rebuilt)):
        for number, image in enumerate(() if images is None else images):
            parts.append(f"\n{title} {number}\n{ascii_picture(image, colour=colour)}")
    return "\n".join(parts)


def describe(record: Record) -> str:
    """A record in lines of text, without its images."""
    cell, goal = record.cell, goals().get(record.cell.goal)
    lines = [
        f"{cell.attack.label} on {cell.training.defense.label}",
        f"  data      {cell.training.dataset.label}, model {cell.training.model.label}, seed {cell.training.seed}",
        f"  threat    {cell.threat}" + (f", {cell.moment} round" if cell.moment else ""),
        *([f"  batch     {cell.batch_size} records per gradient"] if goal is not None and goal.per_batch_size else []),
        f"  status    {record.status}" + (f": {record.reason}" if record.reason else ""),
    ]
    lines += [f"  flag      {flag}" for flag in record.flags]
    if record.scores and all_targets(record):
        lines.append(f"  scores    over {all_targets(record)}" + _ranked_elsewhere(record))
    for name, score in record.scores.items():
        value = "–" if score.value is None else f"{score.value:.4f} {score.unit}".rstrip()
        lines.append(f"  {name:20} {value}" + (f"  ({score.reason})" if score.reason else ""))
    if record.training is not None and record.training.accuracy is not None:
        lines.append(f"  {'accuracy':20} {record.training.accuracy:.4f} after {record.training.rounds} rounds")
    if record.cost is not None:
        lines.append(f"  {'attack time':20} {record.cost.wall_seconds:.1f} s, {record.cost.peak_memory_mib:.0f} MiB")
    if record.provenance is not None:
        dirty = " (with uncommitted changes)" if record.provenance.dirty else ""
        lines.append(f"  {'made':20} {record.provenance.created}, commit {record.provenance.commit}{dirty}")
    text = "\n".join(lines) + (f"\n\n{record.traceback}" if record.traceback else "")
    return "\n".join(map(plain, text.split("\n")))  # whoever wrote the record must not steer this terminal


def _ranked_elsewhere(record: Record) -> str:
    """Why the rankings have another score of this cell; an audit's bound is the same in both."""
    goal = goals().get(record.cell.goal)
    return "" if goal is not None and goal.is_game else " (rankings: over the half on which the attack was not chosen)"
