"""The column of a metric: title, unit and digits are the metric's own, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakboard.leaderboard.records.known import KnownMetric, known_metric
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.table import Column, Direction


def other_metrics(records: Iterable[Record], own: Sequence[str]) -> list[KnownMetric]:
    """The metrics with a value in these records that a table does not name itself, by name."""
    scores = [(name, score) for record in records for name, score in record.scores.items()]
    units = {name: score.unit for name, score in scores if name not in own and score.value is not None}
    return [known_metric(name, units[name]) for name in sorted(units)]


def extra_key(name: str) -> str:
    """The key of such a metric's column: no name can take that of another column."""
    return f"metric {name}"


def metric_column(metric: KnownMetric, *, key: str = "", ranked: bool = False) -> Column:
    """The column of a metric; in a ranking an arrow points to less harm.

    >>> metric_column(KnownMetric("psnr", title="PSNR", unit="dB", higher_is_better=True), ranked=True).header
    'PSNR (dB) ↓'
    """
    direction: Direction | None = None
    if ranked and metric.higher_is_better is not None:
        direction = "lower" if metric.higher_is_better else "higher"
    return Column(
        key or metric.name,
        metric.title,
        metric.unit,
        direction,
        digits=metric.digits,
        help=metric.hint,
        significant=metric.significant,
    )
