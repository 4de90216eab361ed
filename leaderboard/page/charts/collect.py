"""All charts of a page: finds their classes, collects their numbers, writes their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from leakboard.core.files import write_bytes
from leakboard.core.registry import extensions
from leakboard.leaderboard.page.charts.base import Chart
from leakboard.leaderboard.ranking.leaderboards import Board, smallest_batches
from leakboard.leaderboard.records.record import Record


class Drawn(NamedTuple):
    """A chart with its files for a light and a dark page, and the size at which they are shown."""

    chart: Chart
    light: str
    dark: str
    width: int
    height: int


def chart_classes() -> list[type[Chart]]:
    """The classes of all charts, in the order of the page. The first call takes seconds: it loads matplotlib."""
    found = extensions(Chart, "leakboard.leaderboard.page.charts")  # type: ignore[type-abstract]
    return sorted(found.values(), key=lambda one: (one.order, one.name))


def charts(boards: Sequence[Board], records: Sequence[Record]) -> list[Chart]:
    """All charts, those of one data set together. For reconstructions most show the smallest batch size."""
    smallest = {id(board) for board in smallest_batches(boards)}
    datasets = [board.place.dataset for board in boards] + [record.cell.training.dataset.label for record in records]
    found: list[Chart] = []
    for dataset in dict.fromkeys(datasets):
        here = [board for board in boards if board.place.dataset == dataset]
        measured = [record for record in records if record.cell.training.dataset.label == dataset]
        for one in chart_classes():
            shown = [board for board in here if one.all_batch_sizes or id(board) in smallest]
            found += one.numbers([board for board in shown if one.applies_to(board)], measured)
    return found


def save_charts(folder: Path, given: Iterable[Chart]) -> list[Drawn]:
    """Draw charts into `folder/figures`, one file per theme."""
    from leakboard.leaderboard.page.charts.drawing import DARK, LIGHT, to_svg  # seconds of loading: only pages need it

    done: list[Drawn] = []
    taken: Counter[str] = Counter()
    for chart in given:
        taken[chart.stem] += 1
        path = f"figures/{chart.stem}" + (f"-{taken[chart.stem]}" if taken[chart.stem] > 1 else "")
        size = (0, 0)
        for look, suffix in ((LIGHT, "light"), (DARK, "dark")):
            content, size = to_svg(chart, look)
            write_bytes(folder / f"{path}-{suffix}.svg", content)
        done.append(Drawn(chart, f"{path}-light.svg", f"{path}-dark.svg", *size))
    return done


def remove_other_charts(folder: Path, kept: Iterable[Drawn]) -> None:
    """Remove the charts of an earlier page from `folder/figures`."""
    names = {file for drawn in kept for file in (drawn.light, drawn.dark)}
    for path in (folder / "figures").glob("chart-*.svg"):
        if f"figures/{path.name}" not in names:
            path.unlink()
