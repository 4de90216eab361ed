"""Charts of what a defense costs, as numbers: accuracy against the privacy budget, and a round's time by phase."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.charts.numbers import Chart, stem
from leakboard.leaderboard.ranking.epsilons import exact_round, number
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.ranking.utility_gate import Utility
from leakboard.leaderboard.records.record import PluginSpec, Record, TrainingSummary
from leakboard.leaderboard.tables.phase_times import EXTRAPOLATED, PHASES, Setting, seconds_a_round, timed_trainings
from leakboard.leaderboard.tables.table import Cell

#: phases that no column of the paper's has a place for
OTHER = ("other", "other")
#: what the axis of budgets is called
CLAIMED, EXACT = "ε claimed", "ε exact per round"


class Point(NamedTuple):
    """A defense at one budget."""

    epsilon: float
    accuracy: Cell


class Curve(NamedTuple):
    """One defense at its budgets, the least first."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Spending(Chart):
    """Accuracy against epsilon (`axis` says which), one line per defense; the control has none and is a level."""

    curves: tuple[Curve, ...]
    control: str
    level: Cell
    axis: str


class Bar(NamedTuple):
    """A round of one defense: seconds by phase as measured and as extrapolated; no total where work was left out."""

    defense: str
    measured: Mapping[str, float]
    extrapolated: Mapping[str, float]
    total: float | None


@dataclass(frozen=True)
class PhaseBars(Chart):
    """A round's CPU seconds by phase, a bar a defense; `phases` are the keys and names that occur."""

    bars: tuple[Bar, ...]
    phases: tuple[tuple[str, str], ...]


def training_charts(boards: Sequence[Board], records: Sequence[Record]) -> list[Chart]:
    """Accuracy against budget where a defense was trained at several, and phase times, in the order of the page."""
    found: list[Chart] = []
    accuracies = {board.place.dataset: board.utility for board in boards}  # the same on all boards of a data set
    for dataset, utility in accuracies.items():
        chart = _spending(dataset, utility, records)
        found += [chart] if chart is not None else []
    return found + [_phase_bars(setting, trainings) for setting, trainings in timed_trainings(records).items()]


# --- accuracy against the budget ----------------------------------------------------------------


def _spending(dataset: str, utility: Utility, records: Sequence[Record]) -> Spending | None:
    """The chart of a data set; None where no defense was trained at two budgets."""
    here = [r for r in records if r.cell.training.dataset.label == dataset and _epsilon(r, exact=False) is not None]
    exact = any(_epsilon(record, exact=True) is not None for record in here)
    families: dict[tuple[str, str], dict[str, float]] = {}
    specs: dict[tuple[str, str], PluginSpec] = {}
    left_out = set()
    for record in here:
        defense, epsilon = record.cell.training.defense, _epsilon(record, exact=exact)
        if epsilon is None:
            left_out.add(defense.label)
        elif defense.label in utility.accuracy:
            family = defense.name, json.dumps(_others(defense), sort_keys=True)
            specs.setdefault(family, defense)
            families.setdefault(family, {})[defense.label] = epsilon
    if not any(len(set(budgets.values())) > 1 for budgets in families.values()):
        return None
    curves = []
    for family, budgets in families.items():
        points = [Point(epsilon, utility.cell(label)) for label, epsilon in budgets.items()]
        alike = [specs[other] for other in specs if other[0] == family[0]]
        curves.append(Curve(_name(specs[family], alike), tuple(sorted(points, key=lambda point: point.epsilon))))
    order = natural_order({curve.name for curve in curves})
    curves.sort(key=lambda curve: order.index(curve.name))
    return _budget_chart(dataset, utility, curves, _spending_caption(exact, left_out), EXACT if exact else CLAIMED)


def _spending_caption(exact: bool, left_out: set[str]) -> str:
    """What the axis is; one axis has one meaning, so that who has no such epsilon is not drawn."""
    if not exact:
        return (
            "Test accuracy at the ε that each defense claims, of a round or of the whole training as it says; what it "
            "really grants is in the audits."
        )
    missing = f" Not drawn, since there is no exact ε: {', '.join(natural_order(left_out))}." if left_out else ""
    return (
        f"Test accuracy at the exact ε of a round, if all noise were Gaussian, on this graph, at this delta.{missing}"
    )


def _budget_chart(dataset: str, utility: Utility, curves: Sequence[Curve], caption: str, axis: str) -> Spending:
    title = f"Accuracy against privacy budget: {dataset}"
    said = [
        f"{curve.name}: "
        + ", ".join(f"{point.accuracy.value:.1f} % at ε = {point.epsilon:.4g}" for point in curve.points)
        for curve in curves
    ]
    return Spending(
        stem("budget", dataset),
        title,
        f"{caption} Bars are 95 % intervals. The level is {utility.control}, without a budget.",
        tuple(curves),
        utility.control,
        utility.cell(utility.control),
        axis,
        description=f"{title}. {'; '.join(said)}",
    )


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
    """The defense's name, with what tells it from others of that name."""
    mine = _others(spec)
    unlike = [key for key in mine if any(_others(other).get(key) != mine[key] for other in alike)]
    return spec.name + (f" ({', '.join(f'{key} {mine[key]}' for key in unlike)})" if unlike else "")


# --- time by phase ------------------------------------------------------------------------------


def _phase_bars(setting: Setting, trainings: Mapping[str, Sequence[TrainingSummary]]) -> PhaseBars:
    bars = tuple(_bar(name, found) for name, found in trainings.items())
    used = {key for bar in bars for part in (bar.measured, bar.extrapolated) for key in part}
    caption = (
        "CPU seconds of one thread, the server's and the keys' for all clients, one client's as the mean. Lengths on "
        "the left are shares of a round; the total stands on the right on a logarithmic axis, since lengths that are "
        "stacked must not be. Hatched: extrapolated from a sample."
    )
    if any(bar.total is None for bar in bars):
        caption += " Without a total: its cryptography was neither done nor timed."
    title = f"Time by phase: {setting.words}"
    said = [f"{bar.defense} {'unknown' if bar.total is None else f'{bar.total:.3g} s'}" for bar in bars]
    return PhaseBars(
        stem("phases", setting.dataset, setting.model, str(setting.clients)),
        title,
        caption,
        bars,
        tuple((key, name) for key, name in (*PHASES, OTHER) if key in used),
        description=f"{title}. A round in all: {', '.join(said)}",
    )


def _bar(defense: str, trainings: Sequence[TrainingSummary]) -> Bar:
    found = seconds_a_round(trainings)
    known = {key for key, _ in PHASES}
    parts: tuple[dict[str, float], dict[str, float]] = {}, {}
    for key, seconds in found.items():
        phase = key.removesuffix(EXTRAPOLATED)
        if phase != "total":
            part = parts[key.endswith(EXTRAPOLATED)]
            name = phase if phase in known else OTHER[0]
            part[name] = part.get(name, 0.0) + seconds
    return Bar(defense, *parts, found.get(f"total{EXTRAPOLATED}", found.get("total")))
