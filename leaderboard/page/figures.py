"""The figures of a run as files for papers: SVG, PNG and PDF, on white paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.core.files import write_bytes
from leakboard.leaderboard.page.charts.collect import charts
from leakboard.leaderboard.page.picture_table import Images, draw, picture_file, picture_tables
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.records.record import Record

FORMATS = ("svg", "png", "pdf")


def save_figures(
    folder: Path,
    boards: Sequence[Board],
    records: Sequence[Record],
    originals: Images,
    reconstructions: Images,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw all charts and picture tables of a run into a folder, one file per format; returns the files."""
    from leakboard.leaderboard.page.charts.drawing import LIGHT, draw_chart  # seconds of loading

    if unknown := [form for form in formats if form not in FORMATS]:
        raise UserError(f"Figures are written as {', '.join(FORMATS)}; given: {', '.join(unknown)}.")
    written: list[Path] = []
    taken: Counter[str] = Counter()
    for chart in charts(boards, records):
        taken[chart.stem] += 1
        stem = chart.stem + (f"-{taken[chart.stem]}" if taken[chart.stem] > 1 else "")
        for form in formats:
            written.append(folder / f"{stem}.{form}")
            write_bytes(written[-1], draw_chart(chart, LIGHT, form)[0])
    names: set[str] = set()
    for table in picture_tables(records, originals, reconstructions):
        names.add(name := picture_file(table, names))
        for form in formats:
            written.append(folder / f"{Path(name).stem}.{form}")
            write_bytes(written[-1], draw(table, form)[0])
    return written
