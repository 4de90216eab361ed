"""The time of a round by phase, one bar per defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.page.charts.drawing import beside, label, legend_beside, plain_numbers
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.records.record import Record, TrainingSummary
from leakboard.leaderboard.tables.phase_times import EXTRAPOLATED, PHASES, Setting, seconds_per_round, timed_trainings

#: key and name of the phases that have no column in the paper's table
OTHER = ("other", "other")
FLOOR = 1e-3  # seconds: the axis of totals begins here, or at the shortest total
CAPTION = (
    "CPU seconds of one thread: those of the server and the keys for all clients, those of a client as the mean. "
    "The left shows shares of a round, because stacked bars need a linear axis. The right shows totals on a "
    "logarithmic axis. Hatched parts are extrapolated from a sample."
)


class Bar(NamedTuple):
    """A round of one defense: seconds by phase, measured and extrapolated; no total where work was left out."""

    defense: str
    measured: Mapping[str, float]
    extrapolated: Mapping[str, float]
    total: float | None


@dataclass(frozen=True)
class PhaseBars(Chart):
    """CPU seconds of a round by phase, one bar per defense; `phases` are the keys and names that occur."""

    name = "phases"
    shows = "How long a round of each defense takes, and which phases take the time."
    order = 60

    bars: tuple[Bar, ...]
    phases: tuple[tuple[str, str], ...]

    @classmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """One chart per data set, model and number of clients."""
        return [cls._of(setting, trainings) for setting, trainings in timed_trainings(records).items()]

    @classmethod
    def _of(cls, setting: Setting, trainings: Mapping[str, Sequence[TrainingSummary]]) -> Self:
        bars = tuple(_bar(name, found) for name, found in trainings.items())
        used = {key for bar in bars for part in (bar.measured, bar.extrapolated) for key in part}
        caption = CAPTION
        if any(bar.total is None for bar in bars):
            caption += " A defense without a total: its cryptography was neither done nor timed."
        title = f"Time by phase: {setting.words}"
        said = [f"{bar.defense} {'unknown' if bar.total is None else f'{bar.total:.3g} s'}" for bar in bars]
        return cls(
            (setting.dataset, setting.model, str(setting.clients)),
            title,
            caption,
            bars,
            tuple((key, name) for key, name in (*PHASES, OTHER) if key in used),
            description=f"{title}. A whole round: {', '.join(said)}",
        )

    def draw(self, look: Look) -> Figure:
        """Draw shares, which can be stacked, beside totals, which differ by orders of magnitude."""
        width, legend = 9.2, 1.7
        height = max(1.2 + 0.34 * len(self.bars), 1.0 + 0.22 * len(self.phases))
        paper = Figure(figsize=(width, height), layout=beside(legend / width))
        shares, totals = paper.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        colours = _colours(look)
        for y, bar in enumerate(self.bars):
            _draw_shares(shares, y, bar, [key for key, _ in self.phases], colours, look)
            _draw_total(totals, y, bar, look)
        known = [bar.total for bar in self.bars if bar.total]
        totals.set(xscale="log", xlabel="seconds per round, logarithmic")
        totals.set_xlim(min([FLOOR, *known]), 12 * max([10 * FLOOR, *known]))  # room for the number at the longest
        plain_numbers(totals)
        totals.grid(True, axis="x", linewidth=0.6)
        shares.set(xlim=(0, 100), xlabel="share of a round (%)", ylim=(len(self.bars) - 0.4, -0.6))
        shares.set_yticks(range(len(self.bars)), [label(bar.defense) for bar in self.bars])
        for axes in (shares, totals):
            axes.set_axisbelow(True)
            axes.tick_params(left=False)
            sns.despine(ax=axes, left=True)
        handles = [Patch(color=colours[key], label=name) for key, name in self.phases]
        if any(bar.extrapolated for bar in self.bars):
            hatched = Patch(facecolor=look.paper, edgecolor=look.soft, hatch="////", linewidth=0, label="extrapolated")
            handles.append(hatched)
        legend_beside(paper, handles, legend / width)
        return paper


def _bar(defense: str, trainings: Sequence[TrainingSummary]) -> Bar:
    found = seconds_per_round(trainings)
    known = {key for key, _ in PHASES}
    parts: tuple[dict[str, float], dict[str, float]] = {}, {}
    for key, seconds in found.items():
        phase = key.removesuffix(EXTRAPOLATED)
        if phase != "total":
            part = parts[key.endswith(EXTRAPOLATED)]
            name = phase if phase in known else OTHER[0]
            part[name] = part.get(name, 0.0) + seconds
    return Bar(defense, *parts, found.get(f"total{EXTRAPOLATED}", found.get("total")))


def _draw_shares(axes: Any, y: int, bar: Bar, phases: Sequence[str], colours: dict[str, Any], look: Look) -> None:
    whole = sum(bar.measured.values()) + sum(bar.extrapolated.values())
    style = {"edgecolor": look.paper, "linewidth": 0.6}
    left = 0.0
    for phase in phases:
        for part, hatch in ((bar.measured, None), (bar.extrapolated, "////")):
            share = 100 * part.get(phase, 0.0) / whole if whole else 0.0
            if share:
                axes.barh(y, share, 0.66, left=left, color=colours[phase], hatch=hatch, **style)
            left += share


def _draw_total(axes: Any, y: int, bar: Bar, look: Look) -> None:
    if bar.total is None:
        where = (0, y), (4, 0), ("axes fraction", "data"), "offset points"
        axes.annotate("no total", *where, va="center", color=look.soft)
        return
    axes.plot([FLOOR, bar.total], [y, y], color=look.line, linewidth=1.5, zorder=1)
    axes.plot(bar.total, y, marker="o", markersize=6, color=look.ink, zorder=2)
    axes.annotate(f"{bar.total:.3g} s", (bar.total, y), (7, 0), textcoords="offset points", va="center")


def _colours(look: Look) -> dict[str, Any]:
    """A colour for every phase, the same in all charts: clients warm, keys green, the server from teal to violet."""
    wheel = sns.husl_palette(14, l=look.lightness, s=0.8)
    places = {"client": 0, "keys": 5, "server": 7}
    found: dict[str, Any] = {OTHER[0]: look.soft}
    for phase, _ in PHASES:
        role = phase.partition("/")[0]
        found[phase] = wheel[places[role]]
        places[role] += 1
    return found
