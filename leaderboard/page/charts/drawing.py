"""Charts on paper, with seaborn and matplotlib: the same numbers in a light and in a dark look."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Paper
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from leakboard.core.terminal import plain
from leakboard.leaderboard.page.charts.numbers import Budgets, Chart, Matrix, Plane, Roc, Spot, TradeOff
from leakboard.leaderboard.page.roc import Line
from leakboard.leaderboard.tables.table import Cell

CSS_DPI = 96
FONT = 9.0
MARKERS = "osD^vPX<>*"


@dataclass(frozen=True)
class Look:
    """The page's own colours in one of its themes."""

    paper: str
    ink: str
    soft: str
    line: str
    accent: str
    alarm: str
    lightness: float


LIGHT = Look("#ffffff", "#1d2529", "#5a656b", "#dedbd0", "#0b6473", "#a33a1c", 0.45)
DARK = Look("#191f23", "#e4e6e3", "#9eaab0", "#303a40", "#6cc6d4", "#f0977a", 0.68)


def draw(chart: Chart, look: Look) -> tuple[bytes, tuple[int, int]]:
    """The chart as an SVG file, with its width and height in CSS pixels. The same chart always gives the same file."""
    settings = {
        **sns.axes_style("ticks"),
        **{"font.size": FONT, "axes.titlesize": FONT + 0.5, "axes.labelsize": FONT, "legend.fontsize": FONT - 0.5},
        **{"xtick.labelsize": FONT - 0.5, "ytick.labelsize": FONT - 0.5, "font.family": ["DejaVu Sans"]},
        **{
            "text.color": look.ink,
            "axes.labelcolor": look.ink,
            "axes.titlecolor": look.ink,
            "axes.edgecolor": look.soft,
        },
        **{"xtick.color": look.soft, "ytick.color": look.soft, "grid.color": look.line, "axes.facecolor": look.paper},
        **{"figure.facecolor": look.paper, "legend.frameon": False, "axes.titlelocation": "left"},
        # labels are text, not formulas; glyphs as shapes, so that the file needs no font; no random ids
        **{"text.parse_math": False, "svg.fonttype": "path", "svg.hashsalt": "leakboard"},
    }
    with ExitStack() as stack:
        stack.enter_context(style.context(settings, after_reset=True))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label in a script that the font has not
        paper = drawing_of(chart, look)
        out = io.BytesIO()
        paper.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    width, height = paper.get_size_inches() * CSS_DPI
    return out.getvalue(), (round(width), round(height))


@singledispatch
def drawing_of(chart: Chart, look: Look) -> Paper:
    """The chart drawn; every kind of chart registers its own."""
    raise TypeError(f"There is no drawing for a {type(chart).__name__}.")


def label(text: str, most: int = 28) -> str:
    """A label on one line, cut with an ellipsis."""
    text = plain(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def styles_of(defenses: Sequence[str], look: Look) -> dict[str, tuple[Any, str]]:
    """A colour and a mark for every defense; marks tell apart what colours alone might not."""
    colours = sns.husl_palette(max(len(defenses), 1), l=look.lightness, s=0.85)
    return {name: (colours[i], MARKERS[i % len(MARKERS)]) for i, name in enumerate(defenses)}


def beside(room: float) -> ConstrainedLayoutEngine:
    """A layout that leaves this much of the width to a legend at the right."""
    return ConstrainedLayoutEngine(rect=(0, 0, 1 - room, 1), w_pad=0.08, h_pad=0.08)


def legend_beside(paper: Paper, handles: Sequence[Artist], room: float) -> None:
    """A legend in a column at the right, which takes this much of the width."""
    paper.legend(handles=handles, loc="upper left", bbox_to_anchor=(1 - room, 0.97), handlelength=1.8, labelspacing=0.6)


# --- privacy against accuracy -------------------------------------------------------------------


@drawing_of.register
def _trade_off(chart: TradeOff, look: Look) -> Paper:
    across = min(2, len(chart.planes))
    down = -(-len(chart.planes) // across)
    width, legend = 3.7 * across + 2.3, 2.2
    paper = Paper(figsize=(width, max(3.3 * down, 0.23 * len(chart.defenses) + 1.4)), layout=beside(legend / width))
    styles = styles_of(chart.defenses, look)
    for index, plane in enumerate(chart.planes):
        _draw_plane(paper.add_subplot(down, across, index + 1), plane, styles, look)
    handles = [Line2D([], [], color=c, marker=m, linestyle="", label=label(name)) for name, (c, m) in styles.items()]
    if any(spot.plain for plane in chart.planes for spot in plane.spots):
        handles.append(
            Line2D([], [], color=look.soft, marker="o", fillstyle="none", linestyle="", label="plain attack")
        )
    handles.append(Line2D([], [], color=look.soft, linewidth=1.2, label="Pareto front"))
    legend_beside(paper, handles, legend / width)
    return paper


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


def reach(cell: Cell, value: float) -> list[list[float]] | None:
    """How far an interval reaches below and above its value."""
    if cell.low is None or cell.high is None:
        return None
    return [[max(value - cell.low, 0.0)], [max(cell.high - value, 0.0)]]


# --- all threats --------------------------------------------------------------------------------


@drawing_of.register
def _matrix(chart: Matrix, look: Look) -> Paper:
    shape = len(chart.rows), len(chart.columns)
    paper = Paper(figsize=(2.1 + 1.25 * shape[1], 0.95 + 0.36 * shape[0]), layout="constrained")
    axes = paper.add_subplot()
    colours = LinearSegmentedColormap.from_list("harm", [look.paper, look.alarm])
    sns.heatmap(
        np.nan_to_num(chart.colour),
        mask=np.isnan(chart.colour),
        ax=axes,
        vmin=0,
        vmax=1,
        cmap=colours,
        cbar=False,
        linewidths=1,
        linecolor=look.line,
        xticklabels=[_lines(column) for column in chart.columns],
        yticklabels=[label(row) for row in chart.rows],
    )
    for y, x in np.ndindex(*shape):
        harm = chart.colour[y, x]
        strong = not np.isnan(harm) and harm > 0.65
        ink = look.soft if np.isnan(harm) else look.paper if strong else look.ink
        axes.text(x + 0.5, y + 0.5, chart.text[y][x], ha="center", va="center", color=ink)
    axes.tick_params(left=False, bottom=False, top=False, labelbottom=False, labeltop=True, rotation=0)
    axes.set_xlim(0, shape[1])
    return paper


def _lines(text: str) -> str:
    return "\n".join(label(line, 20) for line in text.split("\n"))


# --- budgets ------------------------------------------------------------------------------------


@drawing_of.register
def _budgets(chart: Budgets, look: Look) -> Paper:
    paper = Paper(figsize=(7.2, 1.3 + 0.36 * len(chart.budgets)), layout="constrained")
    axes = paper.add_subplot()
    for y, budget in enumerate(chart.budgets):
        known = [value for value in budget[1:4] if value is not None]
        axes.plot([min(known), max(known)], [y, y], color=look.line, linewidth=2, zorder=1)
        audited = look.alarm if budget.refuted else look.accent
        marks = ((budget.claimed, _CLAIMED, look.ink), (budget.composed, _COMPOSED, look.ink))
        for value, mark, ink in (*marks, (budget.ceiling, _CEILING, look.soft), (budget.audited, _AUDITED, audited)):
            if value is not None:
                axes.plot(value, y, **mark, color=ink)
        if budget.refuted:
            axes.annotate(
                "refuted",
                (budget.audited, y),
                (0, 7),
                textcoords="offset points",
                color=look.alarm,
                ha="center",
                size=7.5,
            )
    axes.set_yticks(range(len(chart.budgets)), [label(budget.defense) for budget in chart.budgets])
    axes.set_ylim(len(chart.budgets) - 0.4, -0.7)
    axes.set_xscale("symlog", linthresh=0.1, linscale=0.4)
    largest = max(value for budget in chart.budgets for value in budget[1:5] if value is not None)
    axes.set_xlim(-0.02, max(1.0, 1.6 * largest))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("ε")
    axes.grid(True, axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(left=False)
    sns.despine(ax=axes, left=True)
    kinds = (("claimed", _CLAIMED), ("composed", _COMPOSED), ("audited", _AUDITED), ("provable at most", _CEILING))
    handles = [
        Line2D([], [], **mark, linestyle="", color=look.accent if n == "audited" else look.ink, label=n)
        for n, mark in kinds
    ]
    paper.legend(handles=handles, loc="outside upper center", ncols=4)
    return paper


_CLAIMED: dict[str, Any] = {"marker": "o", "fillstyle": "none", "markersize": 7, "zorder": 3}
_COMPOSED: dict[str, Any] = {"marker": "s", "fillstyle": "none", "markersize": 6.5, "zorder": 3}
_AUDITED: dict[str, Any] = {"marker": ">", "markersize": 7, "zorder": 4}
_CEILING: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 1.5, "zorder": 2}


# --- ROC ----------------------------------------------------------------------------------------


@drawing_of.register
def _roc(chart: Roc, look: Look) -> Paper:
    """One panel per defense: all of them in one would hide each other's bands."""
    across = min(3, max(len(chart.defenses), 1))
    down = -(-max(len(chart.defenses), 1) // across)
    paper = Paper(figsize=(2.5 * across + 0.4, 2.35 * down + 0.6), layout="constrained")
    edge = min((float(line.fpr[0]) for line in chart.lines), default=0.01)
    axes: Any = None
    for index, defense in enumerate(chart.defenses):
        axes = paper.add_subplot(down, across, index + 1, sharex=axes, sharey=axes)
        mine = [line for line in chart.lines if line.defense == defense]
        for line in mine:
            _draw_roc(axes, line, edge, look)
        axes.plot([edge, 1], [edge, 1], color=look.soft, linestyle=":", linewidth=1)
        axes.set(xscale="log", yscale="log", xlim=(edge, 1), ylim=(edge, 1.12))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
            axis.set_minor_formatter(lambda *_: "")
        axes.set_title(label(defense, 30))
        axes.grid(True, linewidth=0.6)
        axes.set_axisbelow(True)
        names = [label(line.attack, 22) + (" (plain)" if line.plain else "") for line in mine]
        axes.text(
            0.97, 0.03, "\n".join(names), transform=axes.transAxes, ha="right", va="bottom", size=7, color=look.soft
        )
        sns.despine(ax=axes)
    paper.supxlabel("false positive rate", size=FONT, color=look.ink)
    paper.supylabel("true positive rate", size=FONT, color=look.ink)
    handles = [Line2D([], [], color=look.alarm, label="worst attack")]
    if any(line.plain for line in chart.lines):
        handles.append(Line2D([], [], color=look.accent, linestyle="--", label="best plain attack"))
    paper.legend(handles=handles, loc="outside upper center", ncols=2)
    return paper


def _draw_roc(axes: Any, line: Line, edge: float, look: Look) -> None:
    colour = look.accent if line.plain else look.alarm
    tpr, low, high = (np.maximum(values, edge) for values in (line.tpr, line.low, line.high))  # 0 has no logarithm
    axes.fill_between(line.fpr, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(line.fpr, tpr, color=colour, linestyle="--" if line.plain else "-", linewidth=1.5)
