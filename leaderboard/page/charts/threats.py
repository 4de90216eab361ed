"""All threats at a glance: the worst-case harm as a matrix of defenses and threats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import seaborn as sns
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.page.charts.boards import is_measured, number, primary, rows_by_defense, scopes
from leakboard.leaderboard.page.charts.drawing import label
from leakboard.leaderboard.ranking.goal_ranking import ranking_of
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.table import NOTHING

CAPTION = (
    "Colour runs from no harm to full harm: shares as they are, 2·AUC − 1 for membership, tanh(ε/2) for audits. "
    "A column has no colour where the attacks do not break its control, or where there is no generalisation gap."
)


@dataclass(frozen=True)
class Matrix(Chart):
    """Worst-case harm by defense (rows) and threat (columns): colour in [0, 1] or NaN, and the text on it."""

    name = "threats"
    shows = "The worst case of every defense under every threat."
    order = 20

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    colour: NDArray[np.float64]
    text: tuple[tuple[str, ...], ...]

    @classmethod
    def applies_to(cls, board: Board) -> bool:
        """Every threat under which harm was measured."""
        return is_measured(board)

    @classmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """One chart with all threats."""
        if not boards:
            return []
        names = tuple(natural_order({name for board in boards for name in rows_by_defense(board)}))
        colour, text = _entries(names, boards)
        columns = tuple(map(_heading, boards))
        title = f"All threats: {boards[0].place.dataset}"
        said = [
            f"{name}: " + ", ".join(f"{c} {t}" for c, t in zip(columns, line, strict=True))
            for name, line in zip(names, text, strict=True)
        ]
        words = re.sub(r"\s+", " ", f"{title}. {'; '.join(said)}")
        caption = f"{CAPTION} {scopes(boards)}"
        return [cls((boards[0].place.dataset,), title, caption, names, columns, colour, text, description=words)]

    def draw(self, look: Look) -> Figure:
        """Draw the matrix with its numbers."""
        shape = len(self.rows), len(self.columns)
        paper = Figure(figsize=(2.1 + 1.25 * shape[1], 0.95 + 0.36 * shape[0]), layout="constrained")
        axes = paper.add_subplot()
        sns.heatmap(
            np.nan_to_num(self.colour),
            mask=np.isnan(self.colour),
            ax=axes,
            vmin=0,
            vmax=1,
            cmap=LinearSegmentedColormap.from_list("harm", [look.paper, look.alarm]),
            cbar=False,
            linewidths=1,
            linecolor=look.line,
            xticklabels=["\n".join(label(line, 20) for line in column.split("\n")) for column in self.columns],
            yticklabels=[label(row) for row in self.rows],
        )
        for y, x in np.ndindex(*shape):
            harm = self.colour[y, x]
            strong = not np.isnan(harm) and harm > 0.65
            ink = look.soft if np.isnan(harm) else look.paper if strong else look.ink
            axes.text(x + 0.5, y + 0.5, self.text[y][x], ha="center", va="center", color=ink)
        axes.tick_params(left=False, bottom=False, top=False, labelbottom=False, labeltop=True, rotation=0)
        axes.set_xlim(0, shape[1])
        return paper


def _entries(names: Sequence[str], boards: Sequence[Board]) -> tuple[NDArray[np.float64], tuple[tuple[str, ...], ...]]:
    """The colour and the text of every entry; no colour where a leaderboard ranks nobody."""
    colour = np.full((len(names), len(boards)), np.nan)
    text = [[NOTHING] * len(boards) for _ in names]
    for x, board in enumerate(boards):
        column, rows = primary(board), rows_by_defense(board)
        for y, name in enumerate(names):
            cell = rows[name].cells.get(column.key) if name in rows else None
            value = None if cell is None else number(cell)
            if value is not None:
                text[y][x] = column.number(value)
                colour[y, x] = _harm(board.place.goal, value) if board.valid else np.nan
    return colour, tuple(map(tuple, text))


def _harm(goal: str, value: float) -> float:
    """Harm on a common scale from 0 to 1: shares as they are, the advantage 2·AUC − 1, tanh(ε/2), and so on."""
    return min(max(ranking_of(goal).colour(value), 0.0), 1.0)


def _heading(board: Board) -> str:
    column, place = primary(board), board.place
    unit = " ".join(filter(None, [column.title, f"({column.unit})" if column.unit else ""]))
    return "\n".join(filter(None, [place.question, place.size, place.threat, unit]))
