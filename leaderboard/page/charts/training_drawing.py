"""The charts of `training_charts` on paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import seaborn as sns
from matplotlib.figure import Figure as Paper
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from leakboard.leaderboard.page.charts.drawing import Look, beside, drawing_of, label, legend_beside, reach, styles_of
from leakboard.leaderboard.page.charts.training_numbers import OTHER, Bar, PhaseBars, Spending
from leakboard.leaderboard.tables.phase_times import PHASES

FLOOR = 1e-3  # seconds: the least total that the axis reaches down to


@drawing_of.register
def _spending(chart: Spending, look: Look) -> Paper:
    width, legend = 7.6, 2.3
    paper = Paper(figsize=(width, max(3.6, 0.23 * len(chart.curves) + 1.4)), layout=beside(legend / width))
    axes = paper.add_subplot()
    styles = styles_of([curve.name for curve in chart.curves], look)
    for curve in chart.curves:
        colour, marker = styles[curve.name]
        x = [point.epsilon for point in curve.points]
        y = [float(point.accuracy.value or 0) for point in curve.points]
        bars = [reach(point.accuracy, value) or [[0.0], [0.0]] for point, value in zip(curve.points, y, strict=True)]
        ends = [[bar[end][0] for bar in bars] for end in (0, 1)]
        axes.errorbar(
            x, y, yerr=ends, color=colour, marker=marker, markersize=5, linewidth=1.4, elinewidth=1, capsize=2
        )
    if chart.level.is_number:
        axes.axhline(float(chart.level.value or 0), color=look.soft, linestyle="--", linewidth=1.2)
        if chart.level.low is not None and chart.level.high is not None:
            axes.axhspan(chart.level.low, chart.level.high, color=look.soft, alpha=0.14, linewidth=0)
    budgets = sorted({point.epsilon for curve in chart.curves for point in curve.points})
    axes.set(xscale="log", ylim=(0, 102), xlabel=chart.axis, ylabel="accuracy (%)")
    if len(budgets) <= 8:
        axes.set_xticks(budgets)
    _plain_numbers(axes)
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
    sns.despine(ax=axes)
    handles = [Line2D([], [], color=c, marker=m, label=label(name, 30)) for name, (c, m) in styles.items()]
    if chart.level.is_number:
        handles.append(Line2D([], [], color=look.soft, linestyle="--", label=label(chart.control, 30)))
    legend_beside(paper, handles, legend / width)
    return paper


def _plain_numbers(axes: Any) -> None:
    """Numbers on a logarithmic axis as they are: powers would need the formulas that are switched off."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{float(f'{value:.3g}'):g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


@drawing_of.register
def _phase_bars(chart: PhaseBars, look: Look) -> Paper:
    """Shares that can be stacked, beside totals that differ by orders of magnitude."""
    width, legend = 9.2, 1.7
    height = max(1.2 + 0.34 * len(chart.bars), 1.0 + 0.22 * len(chart.phases))
    paper = Paper(figsize=(width, height), layout=beside(legend / width))
    shares, totals = paper.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    colours = _colours(look)
    for y, bar in enumerate(chart.bars):
        _draw_shares(shares, y, bar, [key for key, _ in chart.phases], colours, look)
        if bar.total is None:
            totals.annotate(
                "no total", (0, y), (4, 0), ("axes fraction", "data"), "offset points", va="center", color=look.soft
            )
            continue
        totals.plot([FLOOR, bar.total], [y, y], color=look.line, linewidth=1.5, zorder=1)
        totals.plot(bar.total, y, marker="o", markersize=6, color=look.ink, zorder=2)
        totals.annotate(f"{bar.total:.3g} s", (bar.total, y), (7, 0), textcoords="offset points", va="center")
    known = [bar.total for bar in chart.bars if bar.total]
    totals.set(xscale="log", xlabel="seconds a round, logarithmic")
    totals.set_xlim(min([FLOOR, *known]), 12 * max([10 * FLOOR, *known]))  # room for the number at the longest
    _plain_numbers(totals)
    totals.grid(True, axis="x", linewidth=0.6)
    shares.set(xlim=(0, 100), xlabel="share of a round (%)", ylim=(len(chart.bars) - 0.4, -0.6))
    shares.set_yticks(range(len(chart.bars)), [label(bar.defense) for bar in chart.bars])
    for axes in (shares, totals):
        axes.set_axisbelow(True)
        axes.tick_params(left=False)
        sns.despine(ax=axes, left=True)
    handles = [Patch(color=colours[key], label=name) for key, name in chart.phases]
    if any(bar.extrapolated for bar in chart.bars):
        handles.append(
            Patch(facecolor=look.paper, edgecolor=look.soft, hatch="////", linewidth=0, label="extrapolated")
        )
    legend_beside(paper, handles, legend / width)
    return paper


def _draw_shares(axes: Any, y: int, bar: Bar, phases: Sequence[str], colours: dict[str, Any], look: Look) -> None:
    whole = sum(bar.measured.values()) + sum(bar.extrapolated.values())
    left = 0.0
    for phase in phases:
        for part, hatch in ((bar.measured, None), (bar.extrapolated, "////")):
            share = 100 * part.get(phase, 0.0) / whole if whole else 0.0
            if share:
                axes.barh(
                    y, share, 0.66, left=left, color=colours[phase], edgecolor=look.paper, linewidth=0.6, hatch=hatch
                )
            left += share


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
