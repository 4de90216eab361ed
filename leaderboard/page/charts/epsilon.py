"""Claimed, composed and audited ε, one row per defense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.page.charts.boards import is_measured, number, rows_by_defense, scopes
from leakboard.leaderboard.page.charts.drawing import label
from leakboard.leaderboard.ranking.audit_table import REFUTED
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.records.record import Record

CAPTION = (
    "The audited ε is a lower bound at 95 % confidence: the true ε is at least as large. The tick is the largest ε "
    "that this number of trials could prove. A claim to the left of the audited ε is refuted; for all other claims the "
    "table gives the power of the audit."
)
CLAIMED: dict[str, Any] = {"marker": "o", "fillstyle": "none", "markersize": 7, "zorder": 3}
COMPOSED: dict[str, Any] = {"marker": "s", "fillstyle": "none", "markersize": 6.5, "zorder": 3}
AUDITED: dict[str, Any] = {"marker": ">", "markersize": 7, "zorder": 4}
CEILING: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 1.5, "zorder": 2}


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
    """Claimed, composed and audited ε, one row per defense."""

    name = "epsilon"
    shows = "The ε that each defense claims, and the ε that an audit proves."
    order = 30

    budgets: tuple[Budget, ...]

    @classmethod
    def applies_to(cls, board: Board) -> bool:
        """Audits alone."""
        return board.place.goal == "audit" and is_measured(board)

    @classmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """One chart per threat."""
        return [cls._of(board) for board in boards]

    @classmethod
    def _of(cls, board: Board) -> Self:
        found = []
        for name, row in rows_by_defense(board).items():
            claimed, composed, audited, ceiling = (
                number(row.cells[key]) for key in ("claimed", "composed", "audited", "ceiling")
            )
            if audited is not None:
                found.append(Budget(name, claimed, composed, audited, ceiling, row.cells["verdict"].value == REFUTED))
        title = f"Claimed, composed and audited ε: {board.place.dataset}, threat {board.place.threat}"
        said = [
            f"{b.defense} claimed {_word(b.claimed)}, composed {_word(b.composed)}, audited {b.audited:.2f}"
            for b in found
        ]
        labels, caption = (board.place.dataset, board.place.threat), f"{CAPTION} {scopes([board])}"
        return cls(labels, title, caption, tuple(found), description=f"{title}. {'; '.join(said)}")

    def draw(self, look: Look) -> Figure:
        """Draw one row per defense on a symmetric logarithmic axis, which has a zero."""
        paper = Figure(figsize=(7.2, 1.3 + 0.36 * len(self.budgets)), layout="constrained")
        axes = paper.add_subplot()
        for y, budget in enumerate(self.budgets):
            _draw_budget(axes, y, budget, look)
        axes.set_yticks(range(len(self.budgets)), [label(budget.defense) for budget in self.budgets])
        axes.set_ylim(len(self.budgets) - 0.4, -0.7)
        axes.set_xscale("symlog", linthresh=0.1, linscale=0.4)
        largest = max(value for budget in self.budgets for value in budget[1:5] if value is not None)
        axes.set_xlim(-0.02, max(1.0, 1.6 * largest))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("ε")
        axes.grid(True, axis="x", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(left=False)
        sns.despine(ax=axes, left=True)
        marks = (("claimed", CLAIMED), ("composed", COMPOSED), ("audited", AUDITED), ("provable at most", CEILING))
        handles = [
            Line2D([], [], **mark, linestyle="", color=look.accent if mark is AUDITED else look.ink, label=name)
            for name, mark in marks
        ]
        paper.legend(handles=handles, loc="outside upper center", ncols=4)
        return paper


def _word(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _draw_budget(axes: Any, y: int, budget: Budget, look: Look) -> None:
    known = [value for value in budget[1:4] if value is not None]
    axes.plot([min(known), max(known)], [y, y], color=look.line, linewidth=2, zorder=1)
    audited = look.alarm if budget.refuted else look.accent
    marks = ((budget.claimed, CLAIMED, look.ink), (budget.composed, COMPOSED, look.ink))
    for value, mark, ink in (*marks, (budget.ceiling, CEILING, look.soft), (budget.audited, AUDITED, audited)):
        if value is not None:
            axes.plot(value, y, **mark, color=ink)
    if budget.refuted:
        text = {"textcoords": "offset points", "color": look.alarm, "ha": "center", "size": 7.5}
        axes.annotate("refuted", (budget.audited, y), (0, 7), **text)
