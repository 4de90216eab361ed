"""Privacy against accuracy: one panel per threat, with the Pareto front of the ranked defenses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.page.charts.boards import is_measured, number, primary, rows_by_defense, scopes
from leakboard.leaderboard.page.charts.drawing import beside, label, legend_beside, reach, styles_of
from leakboard.leaderboard.ranking.goal_ranking import ListedRanking, ranking_of
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.ranking.worst_case import PLAIN
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.table import Cell, Column

CAPTION = (
    "Better is to the right and below. Bars are 95 % intervals. A hollow mark is the best plain attack, where the "
    "worst attack knows the defense. Rings and the stepped line mark the Pareto front of the ranked defenses. "
    "Faint marks are not ranked. Defenses with equal values cover each other; the table tells them apart."
)


class Spot(NamedTuple):
    """One defense in a panel: accuracy, harm, and the harm of the plain attack, where that is another one."""

    defense: str
    accuracy: Cell
    harm: Cell
    plain: Cell | None
    ranked: bool
    front: bool


class Plane(NamedTuple):
    """One panel: the defenses under one threat."""

    heading: str
    column: Column
    spots: tuple[Spot, ...]
    chance: float | None


@dataclass(frozen=True)
class TradeOff(Chart):
    """Privacy against accuracy, one panel per threat."""

    name = "trade-off"
    shows = "The worst-case harm of each defense against the accuracy of its model."
    order = 10

    planes: tuple[Plane, ...]
    defenses: tuple[str, ...]

    @classmethod
    def applies_to(cls, board: Board) -> bool:
        """Every goal that harms somebody; an audit proves a bound instead."""
        return not isinstance(ranking_of(board.place.goal), ListedRanking) and is_measured(board)

    @classmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """One chart per question."""
        questions = dict.fromkeys((board.place.goal, board.place.question) for board in boards)
        groups = [[b for b in boards if (b.place.goal, b.place.question) == question] for question in questions]
        return [cls._of(group) for group in groups]

    @classmethod
    def _of(cls, boards: Sequence[Board]) -> Self:
        place = boards[0].place
        planes = tuple(_plane(board) for board in boards)
        caption = f"{CAPTION} {scopes(boards)}"
        if place.size:
            caption += f" Shown is {place.size}, the smallest of this run; every batch size has a table."
        said = [
            f"{plane.heading}: "
            + ", ".join(f"{s.defense} {number(s.accuracy):.1f} %, {_shown(plane.column, s.harm)}" for s in plane.spots)
            for plane in planes
        ]
        title = ", ".join(filter(None, [f"Privacy against accuracy: {place.question}", place.dataset, place.size]))
        return cls(
            (place.dataset, place.question),
            title,
            caption,
            planes,
            tuple(natural_order({spot.defense for plane in planes for spot in plane.spots})),
            description=f"{title}. {'; '.join(said)}",
        )

    def draw(self, look: Look) -> Figure:
        """Draw the panels in a grid, with one legend for all."""
        across = min(2, len(self.planes))
        down = -(-len(self.planes) // across)
        width, legend = 3.7 * across + 2.3, 2.2
        height = max(3.3 * down, 0.23 * len(self.defenses) + 1.4)
        paper = Figure(figsize=(width, height), layout=beside(legend / width))
        styles = styles_of(self.defenses, look)
        for index, plane in enumerate(self.planes):
            _draw_plane(paper.add_subplot(down, across, index + 1), plane, styles, look)
        handles = [Line2D([], [], color=c, marker=m, linestyle="", label=label(n)) for n, (c, m) in styles.items()]
        if any(spot.plain for plane in self.planes for spot in plane.spots):
            hollow = {"marker": "o", "fillstyle": "none", "linestyle": ""}
            handles.append(Line2D([], [], color=look.soft, label="plain attack", **hollow))  # type: ignore[arg-type]
        handles.append(Line2D([], [], color=look.soft, linewidth=1.2, label="Pareto front"))
        legend_beside(paper, handles, legend / width)
        return paper


def front(spots: Iterable[tuple[str, float, float]]) -> set[str]:
    """The names of those (name, accuracy, harm) that nobody beats in one value without losing in the other.

    >>> sorted(front([("a", 0.9, 0.5), ("b", 0.8, 0.2), ("c", 0.8, 0.6), ("d", 0.9, 0.5)]))
    ['a', 'b', 'd']
    """
    all_spots = list(spots)

    def beaten(accuracy: float, harm: float) -> bool:
        return any(a >= accuracy and h <= harm and (a > accuracy or h < harm) for _, a, h in all_spots)

    return {name for name, accuracy, harm in all_spots if not beaten(accuracy, harm)}


def _plane(board: Board) -> Plane:
    column = primary(board)
    rows = {
        name: row
        for name, row in rows_by_defense(board).items()
        if row.cells["accuracy"].is_number and row.cells[column.key].is_number
    }
    values = [(name, number(row.cells["accuracy"]), number(row.cells[column.key])) for name, row in rows.items()]
    ranked = {name for name, row in rows.items() if board.valid and not row.muted}
    best = front([(name, a, h) for name, a, h in values if name in ranked and a is not None and h is not None])
    spots = []
    for name, row in rows.items():
        knows = row.cells["attack"].value != row.cells.get("plain_attack", Cell(None)).value
        plain = row.cells.get(PLAIN + column.key) if knows else None
        spots.append(Spot(name, row.cells["accuracy"], row.cells[column.key], plain, name in ranked, name in best))
    heading = board.place.threat + ("" if board.valid else " (ranks nobody, see the table)")
    return Plane(heading, column, tuple(spots), ranking_of(board.place.goal).guess)


def _shown(column: Column, cell: Cell) -> str:
    return " ".join(filter(None, [Cell(cell.value).main(column), column.unit]))


def _draw_plane(axes: Any, plane: Plane, styles: dict[str, tuple[Any, str]], look: Look) -> None:
    for spot in plane.spots:
        _draw_spot(axes, spot, *styles[spot.defense], look)
    best = sorted({(float(s.accuracy.value), float(s.harm.value)) for s in plane.spots if s.front})  # type: ignore[arg-type]
    if best:
        x, y = zip(*best, strict=True)
        axes.step(x, y, where="pre", color=look.soft, linewidth=1.2, zorder=1)
    if plane.chance is not None:
        axes.axhline(plane.chance, color=look.soft, linestyle=":", linewidth=1)
    if plane.column.unit == "%":
        axes.set_ylim(-4, 104)
    axes.margins(x=0.08, y=0.1)
    axes.set(title=label(plane.heading, 44), xlabel="accuracy (%)", ylabel=f"worst-case {plane.column.header[:-2]}")
    axes.grid(True, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    sns.despine(ax=axes)


def _draw_spot(axes: Any, spot: Spot, colour: Any, marker: str, look: Look) -> None:
    x, y = float(spot.accuracy.value or 0), float(spot.harm.value or 0)
    strength = 1.0 if spot.ranked else 0.45
    axes.errorbar(
        x,
        y,
        xerr=reach(spot.accuracy, x),
        yerr=reach(spot.harm, y),
        color=colour,
        marker=marker,
        markersize=6,
        elinewidth=1,
        alpha=strength,
        zorder=3,
    )
    if spot.front:
        axes.plot(x, y, marker="o", markersize=12, fillstyle="none", color=look.ink, markeredgewidth=0.9, zorder=4)
    if spot.plain is not None and spot.plain.is_number:
        before = float(spot.plain.value or 0)
        axes.plot([x, x], [before, y], color=colour, linewidth=1, linestyle=(0, (2, 2)), alpha=strength, zorder=2)
        axes.plot(x, before, marker=marker, markersize=6, fillstyle="none", color=colour, alpha=strength, zorder=3)
