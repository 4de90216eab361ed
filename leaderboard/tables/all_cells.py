"""The list of all cells: every score of every record, and every cell that failed, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakboard.leaderboard.records.known import KnownGoal, Listed, goals, known_metric
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.scope import all_targets
from leakboard.leaderboard.tables.metric_columns import extra_key, metric_column, other_metrics
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

HEAD = (
    Column("dataset", "data"),
    Column("defense", "defense"),
    Column("attack", "attack"),
    Column("adaptive", "adaptive", help="whether it uses more of the defense than its honest reading"),
    Column("threat", "threat"),
    Column("moment", "round"),
    Column("seed", "seed", digits=0),
    Column("status", "status"),
)
OVER = (Column("over", "over", help="the targets that the scores are over"),)
COST = (Column("seconds", "attack time", unit="s", digits=1),)
NOTE = (
    "Scores of a cell are over all its targets. Rankings report the half on which the attack was not chosen: the same "
    "cell has another score there."
)


def cell_tables(records: Sequence[Record]) -> list[Table]:
    """One list per goal, all cells in the order of the plan."""
    tables = []
    for goal in goals().values():
        found = [record for record in records if record.cell.goal == goal.name]
        if found:
            columns = _columns(goal, found)
            rows = tuple(_row(record, columns) for record in found)
            notes = () if goal.is_game else (NOTE,)
            tables.append(Table(f"All cells: {goal.name}", (*HEAD, *columns.values(), *OVER, *COST), rows, notes))
    return tables


def _columns(goal: KnownGoal, records: Sequence[Record]) -> dict[str | Listed, Column]:
    """What the list shows of a goal, in order: what the goal names, then all other metrics of its records by name."""
    columns: dict[str | Listed, Column] = {}
    for entry in goal.listed:
        if isinstance(entry, Listed):
            columns[entry] = Column(entry.key, entry.title, digits=entry.digits, help=entry.hint)
        else:
            columns[entry] = metric_column(known_metric(entry))
    own = [entry for entry in goal.listed if isinstance(entry, str)]
    others = other_metrics(records, own)
    return columns | {metric.name: metric_column(metric, key=extra_key(metric.name)) for metric in others}


def _row(record: Record, columns: Mapping[str | Listed, Column]) -> Row:
    cell = record.cell
    cells = {
        "dataset": Cell(cell.training.dataset.label),
        "defense": Cell(cell.training.defense.label),
        "attack": Cell(cell.attack.label, link=record.key, note="; ".join(record.flags)),
        "adaptive": Cell("yes" if cell.adaptive else "no"),
        "threat": Cell(cell.threat),
        "moment": Cell(cell.moment or "all"),
        "seed": Cell(cell.training.seed),
        "status": Cell(record.status, note=record.reason),
        "over": Cell(all_targets(record) or None),
        "seconds": Cell(record.cost.wall_seconds if record.cost else None),
    }
    for entry, column in columns.items():
        if isinstance(entry, Listed):
            cells[column.key] = _fact(record, entry)
        else:
            score = record.scores.get(entry)
            cells[column.key] = Cell(None) if score is None else Cell(score.value, note=score.reason)
    return Row(cells, muted=record.status != "ok")


def _fact(record: Record, entry: Listed) -> Cell:
    """A fact of the cell, or a detail of one of its scores."""
    if entry.source:
        return Cell(getattr(record.cell, entry.source))
    score = record.scores.get(entry.score)
    return Cell(None if score is None else score.details.get(entry.key))
