"""What several charts read from a leaderboard: its rows, its main column, and over which targets its scores are."""

from __future__ import annotations

from collections.abc import Sequence

from leakboard.leaderboard.ranking.goal_ranking import ranking_of
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.tables.table import Cell, Column, Row


def primary(board: Board) -> Column:
    """The column that tells the harm."""
    return next(column for column in board.table.columns if column.key == ranking_of(board.place.goal).primary)


def is_measured(board: Board) -> bool:
    """Whether the harm of any defense was measured."""
    return any(row.cells[primary(board).key].is_number for row in board.table.rows)


def rows_by_defense(board: Board) -> dict[str, Row]:
    """The rows of the table, by the name of the defense."""
    return {str(row.cells["defense"].value): row for row in board.table.rows}


def number(cell: Cell) -> float | None:
    """The cell's number; None where it has none."""
    return float(cell.value) if isinstance(cell.value, (int, float)) else None


def scopes(boards: Sequence[Board]) -> str:
    """The sentence that says over which targets the scores are; leaderboards that differ are named."""
    found: dict[str, list[str]] = {}
    for board in boards:
        found.setdefault(board.over, []).append(f"{board.place.question} under {board.place.threat}")
    if len(found) == 1:
        return f"Scores are over {next(iter(found))}."
    return "Scores are over " + "; ".join(f"{over} ({', '.join(where)})" for over, where in found.items()) + "."
