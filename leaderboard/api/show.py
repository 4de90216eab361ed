"""One record in words and pictures, and the records behind the marks of a scoreboard."""

from __future__ import annotations

from pathlib import Path

from leakboard.core.errors import UserError, unknown_name
from leakboard.core.terminal import plain
from leakboard.leaderboard.page.images import originals, reconstructions
from leakboard.leaderboard.page.pictures import ascii_picture
from leakboard.leaderboard.planning.run_folder import RunFolder, open_run, read_record_file
from leakboard.leaderboard.ranking.scoreboard import Scoreboard, ScoreCell, ScoreColumn
from leakboard.leaderboard.records.known import goals
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.scope import all_targets
from leakboard.leaderboard.tables.marks import SIGNS


def show(record: str | Path, *, colour: bool = False) -> str:
    """A record's file, readable: the cell, its scores and cost, and its images as text."""
    path = Path(record)
    found = read_record_file(path)
    opened = open_run(path.parent.parent) if (path.parent.parent / "run.json").is_file() else None
    return _pictured(found, opened, path.parent, colour)


def evidence(
    opened: RunFolder, boards: list[Scoreboard], defense: str, question: str = "", *, colour: bool = False
) -> str:
    """What is behind the marks of a defense: verdict, attack, score and the record's file, question by question.

    With `question`, a part of a column's title, only that one, followed by the whole record of the first seed.
    """
    rows = [(board, row) for board in boards for row in board.rows if row.defense == defense]
    if not rows:
        raise unknown_name("defense on this scoreboard", defense, [row.defense for b in boards for row in b.rows])
    asked = [(c, row.cells[c.name]) for board, row in rows for c in board.columns if c.name in row.cells]
    found = [
        (c, cell) for c, cell in asked if question.lower() in c.name.lower() or question.lower() in c.title.lower()
    ]
    if not found:
        titles = "; ".join(dict.fromkeys(column.title for column, _ in asked))
        raise UserError(f"No question on this scoreboard contains '{question}'; there are: {titles}.")
    files = {r.key: opened.records_folder / f"{r.cell.slug}--{r.key[:12]}.json" for r in opened.records}
    parts = [plain(f"{defense}: {board.sentence(row).partition(': ')[2]}") for board, row in rows]
    for column, cell in found:
        parts += ["", *map(plain, _behind(column, cell, files))]
    if question:
        shown = {record.key: record for record in opened.records}
        keys = [cell.records[0] for _, cell in found if cell.records]
        parts += ["\n" + _pictured(shown[key], opened, opened.records_folder, colour) for key in keys if key in shown]
    return "\n".join(parts)


def _behind(column: ScoreColumn, cell: ScoreCell, files: dict[str, Path]) -> list[str]:
    """The lines of one mark."""
    found = cell.finding
    lines = [
        f"{SIGNS.get(cell.mark, ' ')} {column.title}: {cell.finding.said}" + (f" ({cell.why})" if cell.why else "")
    ]
    if cell.attack:
        knows = ", which knows the defense" if cell.adaptive else ""
        where = ", ".join(filter(None, [f"{found.moment} round" if found.moment else "", found.size]))
        lines += [
            f"    attack   {cell.attack}{knows}" + (f" ({where})" if where else ""),
            f"    score    {found.score}",
        ]
    return lines + [f"    record   {files[key]}" for key in cell.records if key in files]


def _pictured(found: Record, opened: RunFolder | None, folder: Path, colour: bool) -> str:
    """A record in words, then its originals and reconstructions."""
    parts = [describe(found)]
    truth = originals(found, opened.job_of(found) if opened else None)
    rebuilt = reconstructions(found, folder, truth)
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
