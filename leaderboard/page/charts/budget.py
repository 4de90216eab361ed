"""Accuracy against the privacy budget, one line per defense."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.page.charts.drawing import (
    beside,
    draw_line,
    handles_of,
    label,
    legend_beside,
    on_a_log_axis,
    styles_of,
)
from leakboard.leaderboard.ranking.epsilons import exact_round, number
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.ranking.utility_gate import Utility
from leakboard.leaderboard.records.record import PluginSpec, Record
from leakboard.leaderboard.tables.table import Cell

#: the names of the axis
CLAIMED, EXACT = "ε claimed", "ε exact per round"
#: a defense and all its settings but epsilon
Family = tuple[str, str]


class Point(NamedTuple):
    """A defense at one budget."""

    epsilon: float
    accuracy: Cell


class Curve(NamedTuple):
    """One defense at its budgets, the smallest first."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Spending(Chart):
    """Accuracy against epsilon (`axis` says which one), one line per defense; the control is a horizontal line."""

    name = "budget"
    shows = "The test accuracy of each defense at each ε with which it was trained."
    order = 50

    curves: tuple[Curve, ...]
    control: str
    level: Cell
    axis: str

    @classmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """One chart, where some defense was trained at two budgets or more."""
        if not boards:
            return []
        utility = boards[0].utility  # the same in all leaderboards of a data set
        spent = [record for record in records if _epsilon(record, exact=False) is not None]
        exact = any(_epsilon(record, exact=True) is not None for record in spent)
        families, left_out = _families(spent, utility, exact)
        if not any(len(set(budgets.values())) > 1 for _, budgets in families.values()):
            return []
        curves = _curves(families, utility)
        dataset = boards[0].place.dataset
        title = f"Accuracy against privacy budget: {dataset}"
        said = [
            f"{curve.name}: "
            + ", ".join(f"{point.accuracy.value:.1f} % at ε = {point.epsilon:.4g}" for point in curve.points)
            for curve in curves
        ]
        return [
            cls(
                (dataset,),
                title,
                _caption(exact, left_out, utility.control),
                curves,
                utility.control,
                utility.cell(utility.control),
                EXACT if exact else CLAIMED,
                description=f"{title}. {'; '.join(said)}",
            )
        ]

    def draw(self, look: Look) -> Figure:
        """Draw the lines on a logarithmic axis of budgets."""
        width, legend = 7.6, 2.3
        paper = Figure(figsize=(width, max(3.6, 0.23 * len(self.curves) + 1.4)), layout=beside(legend / width))
        axes = paper.add_subplot()
        styles = styles_of([curve.name for curve in self.curves], look)
        for curve in self.curves:
            points = curve.points
            draw_line(axes, [p.epsilon for p in points], [p.accuracy for p in points], *styles[curve.name])
        if self.level.is_number:
            axes.axhline(float(self.level.value or 0), color=look.soft, linestyle="--", linewidth=1.2)
            if self.level.low is not None and self.level.high is not None:
                axes.axhspan(self.level.low, self.level.high, color=look.soft, alpha=0.14, linewidth=0)
        budgets = sorted({point.epsilon for curve in self.curves for point in curve.points})
        ticks = budgets if len(budgets) <= 8 else ()
        on_a_log_axis(axes, ticks, ylim=(0, 102), xlabel=self.axis, ylabel="accuracy (%)")
        handles = handles_of(styles, 30)
        if self.level.is_number:
            handles.append(Line2D([], [], color=look.soft, linestyle="--", label=label(self.control, 30)))
        legend_beside(paper, handles, legend / width)
        return paper


def _families(
    records: Sequence[Record], utility: Utility, exact: bool
) -> tuple[dict[Family, tuple[PluginSpec, dict[str, float]]], set[str]]:
    """Defenses that differ in epsilon alone, each with one plugin and the epsilons by label.

    Second, the labels of defenses that have no epsilon for this axis.
    """
    families: dict[Family, tuple[PluginSpec, dict[str, float]]] = {}
    left_out = set()
    for record in records:
        defense, epsilon = record.cell.training.defense, _epsilon(record, exact=exact)
        if epsilon is None:
            left_out.add(defense.label)
        elif defense.label in utility.accuracy:
            family = defense.name, json.dumps(_others(defense), sort_keys=True)
            families.setdefault(family, (defense, {}))[1][defense.label] = epsilon
    return families, left_out


def _curves(families: dict[Family, tuple[PluginSpec, dict[str, float]]], utility: Utility) -> tuple[Curve, ...]:
    curves = []
    for family, (spec, budgets) in families.items():
        points = [Point(epsilon, utility.cell(name)) for name, epsilon in budgets.items()]
        alike = [other for key, (other, _) in families.items() if key[0] == family[0]]
        curves.append(Curve(_name(spec, alike), tuple(sorted(points, key=lambda point: point.epsilon))))
    order = natural_order({curve.name for curve in curves})
    return tuple(sorted(curves, key=lambda curve: order.index(curve.name)))


def _caption(exact: bool, left_out: set[str], control: str) -> str:
    """What the axis means. It has one meaning, so a defense without such an epsilon is not drawn."""
    if exact:
        missing = f" Not drawn, because they have no exact ε: {', '.join(natural_order(left_out))}." if left_out else ""
        axis = f"The axis is the exact ε of a round, for Gaussian noise, this graph and this delta.{missing}"
    else:
        axis = (
            "The axis is the ε that each defense claims, for a round or for the whole training. The audits show what "
            "it really grants."
        )
    return f"{axis} Bars are 95 % intervals. The horizontal line is {control}, which has no budget."


def _epsilon(record: Record, *, exact: bool) -> float | None:
    """The budget of a defense in its honest training, claimed or exact per round; None where its noise is off."""
    claims = record.training.claims if record.training is not None and not record.cell.training.active else {}
    claimed = number(claims, "epsilon_claimed")
    if claimed is None or claimed <= 0:
        return None
    found = exact_round(claims) if exact else claimed
    return found if found is not None and found > 0 else None


def _others(defense: PluginSpec) -> dict[str, Any]:
    return {name: value for name, value in defense.parameters.items() if name != "epsilon"}


def _name(spec: PluginSpec, alike: Sequence[PluginSpec]) -> str:
    """The defense's name, with the settings in which it differs from others of that name."""
    mine = _others(spec)
    unlike = [key for key in mine if any(_others(other).get(key) != mine[key] for other in alike)]
    return spec.name + (f" ({', '.join(f'{key} {mine[key]}' for key in unlike)})" if unlike else "")
