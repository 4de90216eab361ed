"""The charts of the page: what stands in them, as numbers; `drawing` puts them on paper.

These are made from the boards, so that they show what the tables say: privacy against accuracy, all threats at a
glance, claimed against audited epsilon, and the ROC of membership. What a training costs is in `training_charts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakboard.core.files import write_bytes
from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.roc import Line, roc_line
from leakboard.leaderboard.ranking.audit_table import REFUTED
from leakboard.leaderboard.ranking.goal_ranking import ListedRanking, ranking_of
from leakboard.leaderboard.ranking.leaderboards import Board, smallest_batches
from leakboard.leaderboard.ranking.worst_case import PLAIN
from leakboard.leaderboard.tables.table import NOTHING, Cell, Column, Row

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """One figure: `name` is its file's stem, `caption` stands beneath it, `description` tells it in words."""

    name: str
    title: str
    caption: str
    description: str = field(default="", kw_only=True)


class Spot(NamedTuple):
    """A defense in a plane: accuracy and harm with their intervals, the plain attack's harm, and how it stands."""

    defense: str
    accuracy: Cell
    harm: Cell
    plain: Cell | None
    ranked: bool
    front: bool


class Plane(NamedTuple):
    """Privacy against accuracy under one threat."""

    heading: str
    column: Column
    spots: tuple[Spot, ...]
    chance: float | None


@dataclass(frozen=True)
class TradeOff(Chart):
    """Privacy against accuracy, a plane a threat."""

    planes: tuple[Plane, ...]
    defenses: tuple[str, ...]


@dataclass(frozen=True)
class Matrix(Chart):
    """Worst-case harm by defense (rows) and threat (columns): colour in [0, 1] or NaN, and the text on it."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    colour: Floats
    text: tuple[tuple[str, ...], ...]


class Budget(NamedTuple):
    """The epsilons of one defense."""

    defense: str
    claimed: float | None
    composed: float | None
    audited: float
    ceiling: float | None
    refuted: bool


@dataclass(frozen=True)
class Budgets(Chart):
    """Claimed, composed and audited epsilon, one row per defense."""

    budgets: tuple[Budget, ...]


@dataclass(frozen=True)
class Roc(Chart):
    """The ROC of every defense under one threat, a panel each."""

    lines: tuple[Line, ...]
    defenses: tuple[str, ...]


# --- what is in them ----------------------------------------------------------------------------


def charts(boards: Sequence[Board]) -> list[Chart]:
    """All charts that are made from the boards, in the order in which they stand.

    Of reconstructions they show the smallest batch size, and name it.
    """
    boards = smallest_batches(boards)
    boards = [board for board in boards if any(row.cells[_primary(board).key].is_number for row in board.table.rows)]
    found: list[Chart] = []
    for dataset in dict.fromkeys(board.place.dataset for board in boards):
        here = [board for board in boards if board.place.dataset == dataset]
        ranked = (b for b in here if not isinstance(ranking_of(b.place.goal), ListedRanking))
        goals = dict.fromkeys((board.place.goal, board.place.question) for board in ranked)
        found += [_trade_off(dataset, [b for b in here if (b.place.goal, b.place.question) == goal]) for goal in goals]
        found.append(_matrix(dataset, here))
        found += [_budgets(board) for board in here if board.place.goal == "audit"]
        found += [_roc(board) for board in here if board.place.goal == "membership"]
    return found


def _rows(board: Board) -> dict[str, Row]:
    return {str(row.cells["defense"].value): row for row in board.table.rows}


def _primary(board: Board) -> Column:
    return next(column for column in board.table.columns if column.key == ranking_of(board.place.goal).primary)


def _shown(column: Column, cell: Cell) -> str:
    return " ".join(filter(None, [Cell(cell.value).main(column), column.unit]))


def front(spots: Iterable[tuple[str, float, float]]) -> set[str]:
    """Names of those (name, accuracy, harm) that nobody beats in one without losing in the other.

    >>> sorted(front([("a", 0.9, 0.5), ("b", 0.8, 0.2), ("c", 0.8, 0.6), ("d", 0.9, 0.5)]))
    ['a', 'b', 'd']
    """
    all_spots = list(spots)

    def beaten(accuracy: float, harm: float) -> bool:
        return any(a >= accuracy and h <= harm and (a > accuracy or h < harm) for _, a, h in all_spots)

    return {name for name, accuracy, harm in all_spots if not beaten(accuracy, harm)}


def _number(cell: Cell) -> float | None:
    return float(cell.value) if isinstance(cell.value, (int, float)) else None


def _trade_off(dataset: str, boards: Sequence[Board]) -> TradeOff:
    planes = tuple(_plane(board) for board in boards)
    defenses = tuple(natural_order({spot.defense for plane in planes for spot in plane.spots}))
    goal = boards[0].place.question
    caption = (
        "Better is to the right and below. Bars are 95 % intervals; a hollow mark is the best plain attack, where the "
        "worst one knows the defense; rings and the stepped line mark the Pareto front of those that are ranked. "
        "Faint marks are shown, not ranked. Defenses at one place cover each other; the table tells them apart. "
        f"{_scopes(boards)}"
    )
    if size := boards[0].place.size:
        caption += f" Shown is {size}, the smallest of this run; every batch size has a table."
    said = [
        f"{plane.heading}: "
        + ", ".join(f"{s.defense} {_number(s.accuracy):.1f} %, {_shown(plane.column, s.harm)}" for s in plane.spots)
        for plane in planes
    ]
    title = ", ".join(filter(None, [f"Privacy against accuracy: {goal}", dataset, boards[0].place.size]))
    return TradeOff(
        stem("trade-off", dataset, goal), title, caption, planes, defenses, description=f"{title}. {'; '.join(said)}"
    )


def _scopes(boards: Sequence[Board]) -> str:
    """Over which targets the scores of a chart are; where its boards differ, each with its own."""
    found: dict[str, list[str]] = {}
    for board in boards:
        found.setdefault(board.over, []).append(f"{board.place.question} under {board.place.threat}")
    if len(found) == 1:
        return f"Scores are over {next(iter(found))}."
    return "Scores are over " + "; ".join(f"{over} ({', '.join(where)})" for over, where in found.items()) + "."


def _plane(board: Board) -> Plane:
    column = _primary(board)
    rows = {n: r for n, r in _rows(board).items() if r.cells["accuracy"].is_number and r.cells[column.key].is_number}
    places = [(name, _number(row.cells["accuracy"]), _number(row.cells[column.key])) for name, row in rows.items()]
    ranked = {name for name, row in rows.items() if board.valid and not row.muted}
    best = front([(name, a, h) for name, a, h in places if name in ranked and a is not None and h is not None])
    spots = []
    for name, row in rows.items():
        knows = row.cells["attack"].value != row.cells.get("plain_attack", Cell(None)).value
        plain = row.cells.get(PLAIN + column.key) if knows else None
        spots.append(Spot(name, row.cells["accuracy"], row.cells[column.key], plain, name in ranked, name in best))
    heading = board.place.threat + ("" if board.valid else " (ranks nobody, see the table)")
    return Plane(heading, column, tuple(spots), ranking_of(board.place.goal).guess)


def _colour(goal: str, value: float) -> float:
    """Harm on a common scale from 0 to 1: shares as they are, the advantage 2·AUC − 1, tanh(ε/2), and so on."""
    return min(max(ranking_of(goal).colour(value), 0.0), 1.0)


def _matrix(dataset: str, boards: Sequence[Board]) -> Matrix:
    names = tuple(natural_order({name for board in boards for name in _rows(board)}))
    colour = np.full((len(names), len(boards)), np.nan)
    text = [[NOTHING] * len(boards) for _ in names]
    for x, board in enumerate(boards):
        column = _primary(board)
        for y, name in enumerate(names):
            cell = _rows(board)[name].cells.get(column.key) if name in _rows(board) else None
            value = None if cell is None else _number(cell)
            if value is not None:
                text[y][x] = column.number(value)
                colour[y, x] = _colour(board.place.goal, value) if board.valid else np.nan
    units = [
        " ".join(filter(None, [_primary(b).title, f"({_primary(b).unit})" if _primary(b).unit else ""])) for b in boards
    ]
    heads = [[board.place.question, board.place.size, board.place.threat] for board in boards]
    columns = tuple("\n".join(filter(None, [*head, unit])) for head, unit in zip(heads, units, strict=True))
    caption = (
        "The worst case of every defense under every threat. Colour runs from none to all: shares as they are, "
        "2·AUC − 1, tanh(ε/2). Without colour: the column's control does not break, or there is no generalisation gap. "
        f"{_scopes(boards)}"
    )
    title = f"All threats: {dataset}"
    said = [
        f"{name}: " + ", ".join(f"{c} {t}" for c, t in zip(columns, line, strict=True))
        for name, line in zip(names, text, strict=True)
    ]
    words = re.sub(r"\s+", " ", f"{title}. {'; '.join(said)}")
    return Matrix(
        stem("threats", dataset), title, caption, names, columns, colour, tuple(map(tuple, text)), description=words
    )


def _budgets(board: Board) -> Budgets:
    found = []
    for name, row in _rows(board).items():
        claimed, composed, audited, ceiling = (
            _number(row.cells[key]) for key in ("claimed", "composed", "audited", "ceiling")
        )
        if audited is not None:
            found.append(Budget(name, claimed, composed, audited, ceiling, row.cells["verdict"].value == REFUTED))
    caption = (
        "The audited epsilon is a lower bound at 95 % confidence, so the true one is there or to the right of it; the "
        "tick is the most that so many trials could prove. A claim to the left of the audited epsilon is refuted; for "
        f"any other the table gives the power of the audit. {_scopes([board])}"
    )
    title = f"Claimed, composed and audited ε: {board.place.dataset}, threat {board.place.threat}"
    said = [
        f"{b.defense} claimed {_word(b.claimed)}, composed {_word(b.composed)}, audited {b.audited:.2f}" for b in found
    ]
    name = stem("epsilon", board.place.dataset, board.place.threat)
    return Budgets(name, title, caption, tuple(found), description=f"{title}. {'; '.join(said)}")


def _word(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _roc(board: Board) -> Roc:
    found = []
    for row in board.rows:
        found.append(roc_line(row.defense, row.reported, plain=False))
        if row.plain is not None and row.plain.attack != row.reported.attack:
            found.append(roc_line(row.defense, row.plain, plain=True))
    lines = tuple(line for line in found if line is not None)
    seeds = max((len(np.unique(row.strata)) for row in board.rows), default=0)
    band = (
        f"the mean over {seeds} seeds, the band from the least to the largest of them"
        if seeds > 1
        else "of one seed, the band the central 95 % of resamples of its records"
    )
    dashed = (
        "; dashed: the best plain attack, where the worst one knows the defense"
        if any(line.plain for line in lines)
        else ""
    )
    caption = (
        f"Both axes are logarithmic. One panel per defense, its worst attack, {band}{dashed}. Rates are over "
        f"{board.over}. On the lower edge no member is found; the dotted line is a coin."
    )
    title = f"ROC: {board.place.question}, {board.place.dataset}, threat {board.place.threat}"
    said = [f"{line.defense} under {line.attack}" + (" (plain)" if line.plain else "") for line in lines]
    name = stem("roc", board.place.dataset, board.place.question, board.place.threat)
    defenses = tuple(natural_order({line.defense for line in lines}))
    return Roc(name, title, caption, lines, defenses, description=f"{title}: {', '.join(said)}")


def stem(*labels: str) -> str:
    """A file's stem that no label can break out of."""
    return "-".join(
        ["chart", *(re.sub(r"[^a-z0-9._+-]+", "_", label.lower())[:40].replace("+", "_and_") for label in labels)]
    )


# --- on the page --------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A chart with its files for a light and a dark page, and the size at which they are shown."""

    chart: Chart
    light: str
    dark: str
    width: int
    height: int


def save_charts(folder: Path, given: Iterable[Chart]) -> list[Drawn]:
    """Draw charts into `folder/figures`, one file a theme."""
    import leakboard.leaderboard.page.charts.training_drawing  # noqa: F401  (it adds its drawings to those of the next line)
    from leakboard.leaderboard.page.charts.drawing import DARK, LIGHT, draw  # seconds of loading that only a page needs

    done: list[Drawn] = []
    taken: Mapping[str, int] = {}
    for chart in given:
        taken = {**taken, chart.name: taken.get(chart.name, 0) + 1}
        path = f"figures/{chart.name}" + (f"-{taken[chart.name]}" if taken[chart.name] > 1 else "")
        size = (0, 0)
        for look, suffix in ((LIGHT, "light"), (DARK, "dark")):
            content, size = draw(chart, look)
            write_bytes(folder / f"{path}-{suffix}.svg", content)
        done.append(Drawn(chart, f"{path}-light.svg", f"{path}-dark.svg", *size))
    return done


def remove_other_charts(folder: Path, kept: Iterable[Drawn]) -> None:
    """Remove from `folder/figures` the charts of an earlier page."""
    names = {file for drawn in kept for file in (drawn.light, drawn.dark)}
    for path in (folder / "figures").glob("chart-*.svg"):
        if f"figures/{path.name}" not in names:
            path.unlink()
