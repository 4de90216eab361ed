"""What all charts share when they are drawn with seaborn and matplotlib: colours, labels, legends, the SVG file."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import seaborn as sns
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from leakboard.core.terminal import plain
from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.tables.table import Cell

CSS_DPI = 96
PAPER_DPI = 300
#: entries of a file that differ from day to day
NO_DATE: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}
FONT = 9.0
MARKERS = "osD^vPX<>*"


LIGHT = Look("#ffffff", "#1d2529", "#5a656b", "#dedbd0", "#0b6473", "#a33a1c", 0.45)
DARK = Look("#191f23", "#e4e6e3", "#9eaab0", "#303a40", "#6cc6d4", "#f0977a", 0.68)


def to_svg(chart: Chart, look: Look) -> tuple[bytes, tuple[int, int]]:
    """The chart as an SVG file, with its width and height in CSS pixels."""
    return draw_chart(chart, look, "svg")


def draw_chart(chart: Chart, look: Look, form: str) -> tuple[bytes, tuple[int, int]]:
    """The chart as a file of this format, with its width and height in CSS pixels. Equal charts give equal files."""
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
        # labels are text, not formulas; glyphs are shapes, so the file needs no font; ids are not random
        **{"text.parse_math": False, "svg.fonttype": "path", "svg.hashsalt": "leakboard"},
        "pdf.fonttype": 42,  # journals refuse matplotlib's default, Type 3
    }
    with ExitStack() as stack:
        stack.enter_context(style.context(settings, after_reset=True))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label in a script that the font lacks
        paper = chart.draw(look)
        out = io.BytesIO()
        paper.savefig(out, format=form, dpi=PAPER_DPI if form == "png" else "figure", metadata=NO_DATE[form])
    width, height = paper.get_size_inches() * CSS_DPI
    return out.getvalue(), (round(width), round(height))


def label(text: str, most: int = 28) -> str:
    """A label on one line, cut with an ellipsis."""
    text = plain(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def styles_of(defenses: Sequence[str], look: Look) -> dict[str, tuple[Any, str]]:
    """A colour and a marker for every defense. Markers help where colours look alike."""
    colours = sns.husl_palette(max(len(defenses), 1), l=look.lightness, s=0.85)
    return {name: (colours[i], MARKERS[i % len(MARKERS)]) for i, name in enumerate(defenses)}


def beside(room: float) -> ConstrainedLayoutEngine:
    """A layout that leaves this share of the width for a legend on the right."""
    return ConstrainedLayoutEngine(rect=(0, 0, 1 - room, 1), w_pad=0.08, h_pad=0.08)


def legend_beside(paper: Figure, handles: Sequence[Artist], room: float) -> None:
    """A legend in a column on the right, which takes this share of the width."""
    paper.legend(handles=handles, loc="upper left", bbox_to_anchor=(1 - room, 0.97), handlelength=1.8, labelspacing=0.6)


def reach(cell: Cell, value: float) -> list[list[float]] | None:
    """The distances of an interval's ends below and above its value."""
    if cell.low is None or cell.high is None:
        return None
    return [[max(value - cell.low, 0.0)], [max(cell.high - value, 0.0)]]


def plain_numbers(axes: Any) -> None:
    """Print the numbers of a logarithmic x-axis in full: powers would need formulas, which are switched off."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{float(f'{value:.3g}'):g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def on_a_log_axis(axes: Any, ticks: Sequence[float] = (), **settings: Any) -> None:
    """Draw on a logarithmic x-axis with a grid."""
    axes.set(xscale="log", **settings)
    if ticks:
        axes.set_xticks(ticks)
    plain_numbers(axes)
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
    sns.despine(ax=axes)


def draw_line(axes: Any, x: Sequence[float], cells: Sequence[Cell], colour: Any, marker: str) -> None:
    """A defense's line through these cells, with their intervals as bars."""
    y = [float(cell.value or 0) for cell in cells]
    bars = [reach(cell, value) or [[0.0], [0.0]] for cell, value in zip(cells, y, strict=True)]
    ends = [[bar[end][0] for bar in bars] for end in (0, 1)]
    axes.errorbar(x, y, yerr=ends, color=colour, marker=marker, markersize=5, linewidth=1.4, elinewidth=1, capsize=2)


def handles_of(styles: Mapping[str, tuple[Any, str]], most: int) -> list[Line2D]:
    """An entry of the legend for every defense."""
    return [Line2D([], [], color=c, marker=m, label=label(name, most)) for name, (c, m) in styles.items()]
