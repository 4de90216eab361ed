"""Reconstruction against the batch size, one line per defense, with the prior as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.charts.base import Chart, Look
from leakboard.leaderboard.page.charts.boards import number, rows_by_defense, scopes
from leakboard.leaderboard.page.charts.drawing import (
    beside,
    draw_line,
    handles_of,
    legend_beside,
    on_a_log_axis,
    styles_of,
)
from leakboard.leaderboard.ranking.leaderboards import Board, place_of
from leakboard.leaderboard.records.record import PRIOR, Record
from leakboard.leaderboard.tables.table import Cell

CAPTION = (
    "Each point is the worst attack on batches of that many records of the victim. The dashed line is the prior, the "
    "best guess without an attack: at or below it nothing of the images was learned. Bars are 95 % intervals. Points "
    "of one size are drawn side by side."
)


class Point(NamedTuple):
    """A defense at one batch size: the share of identified images in %, and the PSNR above the prior in dB."""

    size: int
    identified: Cell
    excess: Cell


#: how much further right each defense's points are drawn than those of the one before, as a factor
ASIDE = 1.05


class Line(NamedTuple):
    """One defense at its batch sizes, the smallest first."""

    defense: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class BatchSizes(Chart):
    """Identified images, and the PSNR above the prior, against the batch size."""

    name = "batches"
    shows = "What the worst attack recovers from batches of each size."
    order = 15
    all_batch_sizes = True

    lines: tuple[Line, ...]
    #: batch size and the share of images, in %, that the best guess identifies at it
    prior: tuple[tuple[int, float], ...] = ()

    @classmethod
    def applies_to(cls, board: Board) -> bool:
        """Reconstructions alone."""
        return board.place.goal == "reconstruction"

    @classmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """One chart per threat under which two batch sizes or more were measured."""
        found = []
        for threat in dict.fromkeys(board.place.threat for board in boards):
            here = [board for board in boards if board.place.threat == threat]
            lines = _lines(here)
            if len({point.size for line in lines for point in line.points}) > 1:
                found.append(cls._of(here, lines, records))
        return found

    @classmethod
    def _of(cls, boards: Sequence[Board], lines: tuple[Line, ...], records: Sequence[Record]) -> Self:
        place = boards[0].place
        prior = tuple((board.place.batch_size, _prior(board, records)) for board in boards)
        title = f"Reconstruction against batch size: {place.dataset}, threat {place.threat}"
        said = [
            f"{line.defense}: " + ", ".join(f"{p.excess.value:.1f} dB over the prior at {p.size}" for p in line.points)
            for line in lines
        ]
        labels, caption = (place.dataset, place.threat), f"{CAPTION} {scopes(boards[:1])}"
        return cls(labels, title, caption, lines, tuple(sorted(prior)), description=f"{title}. {'; '.join(said)}")

    def draw(self, look: Look) -> Figure:
        """Draw both measures beside each other, on logarithmic axes of batch sizes."""
        width, legend = 9.2, 2.1
        paper = Figure(figsize=(width, max(3.4, 0.23 * len(self.lines) + 1.4)), layout=beside(legend / width))
        left, right = paper.subplots(1, 2)
        styles = styles_of([line.defense for line in self.lines], look)
        for place, line in enumerate(self.lines):
            sizes = [point.size * ASIDE ** (place - (len(self.lines) - 1) / 2) for point in line.points]
            draw_line(left, sizes, [point.identified for point in line.points], *styles[line.defense])
            draw_line(right, sizes, [point.excess for point in line.points], *styles[line.defense])
        left.plot(*zip(*self.prior, strict=True), color=look.soft, linestyle="--", linewidth=1.2)
        right.axhline(0, color=look.soft, linestyle="--", linewidth=1.2)
        ticks = sorted({point.size for line in self.lines for point in line.points})
        for axes in (left, right):
            on_a_log_axis(axes, ticks, xlabel="records per batch")
        left.set(ylim=(-2, 102), ylabel="identified images (%)")
        right.set(ylabel="PSNR over the prior (dB)")
        prior = Line2D([], [], color=look.soft, linestyle="--", label="prior")
        legend_beside(paper, [*handles_of(styles, 26), prior], legend / width)
        return paper


def _lines(boards: Sequence[Board]) -> tuple[Line, ...]:
    points: dict[str, list[Point]] = {}
    for board in sorted(boards, key=lambda board: board.place.batch_size):
        for name, row in rows_by_defense(board).items():
            identified, excess = row.cells["identified"], row.cells["excess"]
            if number(identified) is not None and number(excess) is not None:
                points.setdefault(name, []).append(Point(board.place.batch_size, identified, excess))
    return tuple(Line(name, tuple(points[name])) for name in natural_order(set(points)))


def _prior(board: Board, records: Sequence[Record]) -> float:
    """The share of images, in %, that the better of the guesses identifies on a board, over its seeds and rounds."""
    shares: dict[str, list[float]] = {}
    for record in records:
        if record.cell.attack.name == PRIOR and place_of(record) == board.place:
            value = record.scores["identified"].value if "identified" in record.scores else None
            shares.setdefault(record.cell.attack.label, []).extend([] if value is None else [value])
    return 100 * max((sum(own) / len(own) for own in shares.values() if own), default=0.0)
