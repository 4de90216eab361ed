"""The ROC of membership attacks: one panel per defense, its worst attack and its best plain attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.page.charts.boards import is_measured
from leakboard.leaderboard.page.charts.drawing import FONT, label
from leakboard.leaderboard.page.roc import roc_at
from leakboard.leaderboard.ranking.evidence import STATISTICS_SEED, Evidence
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.records.record import Record

Floats = NDArray[np.float64]
DRAWS = 200  # resamples behind the band of a single seed
LEVELS = 121  # false positive rates at which a curve is given


class Line(NamedTuple):
    """A ROC: true positive rate and band at each false positive rate."""

    defense: str
    attack: str
    plain: bool
    fpr: Floats
    tpr: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Roc(Chart):
    """The ROC of every defense under one threat, one panel per defense."""

    name = "roc"
    shows = "How many members the worst attack on each defense finds, at each rate of false alarms."
    order = 40

    lines: tuple[Line, ...]
    defenses: tuple[str, ...]

    @classmethod
    def applies_to(cls, board: Board) -> bool:
        """Membership, in the training data or in a batch."""
        return board.place.goal == "membership" and is_measured(board)

    @classmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """One chart per question and threat."""
        return [cls._of(board) for board in boards]

    @classmethod
    def _of(cls, board: Board) -> Self:
        found = []
        for row in board.rows:
            found.append(roc_line(row.defense, row.reported, plain=False))
            if row.plain is not None and row.plain.attack != row.reported.attack:
                found.append(roc_line(row.defense, row.plain, plain=True))
        lines = tuple(line for line in found if line is not None)
        place = board.place
        title = f"ROC: {place.question}, {place.dataset}, threat {place.threat}"
        said = [f"{line.defense} under {line.attack}" + (" (plain)" if line.plain else "") for line in lines]
        return cls(
            (place.dataset, place.question, place.threat),
            title,
            _caption(board, lines),
            lines,
            tuple(natural_order({line.defense for line in lines})),
            description=f"{title}: {', '.join(said)}",
        )

    def draw(self, look: Look) -> Figure:
        """Draw one panel per defense: in a single panel their bands would hide each other."""
        across = min(3, max(len(self.defenses), 1))
        down = -(-max(len(self.defenses), 1) // across)
        paper = Figure(figsize=(2.5 * across + 0.4, 2.35 * down + 0.6), layout="constrained")
        edge = min((float(line.fpr[0]) for line in self.lines), default=0.01)
        axes: Any = None
        for index, defense in enumerate(self.defenses):
            axes = paper.add_subplot(down, across, index + 1, sharex=axes, sharey=axes)
            _draw_panel(axes, defense, [line for line in self.lines if line.defense == defense], edge, look)
        paper.supxlabel("false positive rate", size=FONT, color=look.ink)
        paper.supylabel("true positive rate", size=FONT, color=look.ink)
        handles = [Line2D([], [], color=look.alarm, label="worst attack")]
        if any(line.plain for line in self.lines):
            handles.append(Line2D([], [], color=look.accent, linestyle="--", label="best plain attack"))
        paper.legend(handles=handles, loc="outside upper center", ncols=2)
        return paper


def roc_line(defense: str, evidence: Evidence, *, plain: bool) -> Line | None:
    """The mean ROC over seeds; its band runs from the least to the largest. None where a seed lacks a class.

    The band of a single seed is the central 95 % of resamples of its members and of its non-members.
    """
    parts = []
    for seed in np.unique(evidence.strata):
        rows = evidence.strata == seed
        parts.append((evidence.values["score"][rows], evidence.values["member"][rows]))
    if any(not 0 < members.sum() < len(members) for _, members in parts):
        return None
    fewest = min(int((members == 0).sum()) for _, members in parts)
    levels = np.geomspace(1 / fewest, 1, LEVELS)
    curves = np.array([roc_at(scores, members, levels) for scores, members in parts])
    low, high = curves.min(0), curves.max(0)
    if len(parts) == 1:
        low, high = np.quantile(_resampled(*parts[0], levels), [0.025, 0.975], axis=0)
    return Line(defense, evidence.attack, plain, levels, curves.mean(0), low, high)


def _resampled(scores: Floats, members: Floats, levels: Floats) -> Floats:
    generator = np.random.default_rng(STATISTICS_SEED)
    groups = [np.flatnonzero(members == kind) for kind in (0.0, 1.0)]
    drawn = (np.concatenate([generator.choice(group, len(group)) for group in groups]) for _ in range(DRAWS))
    return np.array([roc_at(scores[rows], members[rows], levels) for rows in drawn])


def _caption(board: Board, lines: Sequence[Line]) -> str:
    seeds = max((len(np.unique(row.strata)) for row in board.rows), default=0)
    if seeds > 1:
        band = f"A line is the mean over {seeds} seeds; its band runs from the least to the largest of them."
    else:
        band = "A line comes from one seed; its band is the central 95 % of resamples of its records."
    if any(line.plain for line in lines):
        band += " A dashed line is the best plain attack, where the worst attack knows the defense."
    return (
        f"Both axes are logarithmic. {band} Rates are over {board.over}. On the lower edge no member is found; the "
        "dotted line is a coin toss."
    )


def _draw_panel(axes: Any, defense: str, lines: Sequence[Line], edge: float, look: Look) -> None:
    for line in lines:
        colour = look.accent if line.plain else look.alarm
        tpr, low, high = (np.maximum(values, edge) for values in (line.tpr, line.low, line.high))  # 0 has no logarithm
        axes.fill_between(line.fpr, low, high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(line.fpr, tpr, color=colour, linestyle="--" if line.plain else "-", linewidth=1.5)
    axes.plot([edge, 1], [edge, 1], color=look.soft, linestyle=":", linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(edge, 1), ylim=(edge, 1.12))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axis.set_minor_formatter(lambda *_: "")
    axes.set_title(label(defense, 30))
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
    names = [label(line.attack, 22) + (" (plain)" if line.plain else "") for line in lines]
    place = {"transform": axes.transAxes, "ha": "right", "va": "bottom", "size": 7, "color": look.soft}
    axes.text(0.97, 0.03, "\n".join(names), **place)
    sns.despine(ax=axes)
