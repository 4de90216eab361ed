"""The ROC of a membership attack: its values, and the small drawing in a record."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakboard.leaderboard.records.record import Record

Floats = NDArray[np.float64]
POINTS = 49  # number of points in a record's small drawing


def roc_at(scores: Floats, members: Floats, levels: Floats) -> Floats:
    """The highest true positive rate at each limit of the false positive rate. Tied scores stay together.

    >>> roc_at(np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.5, 1.0])).tolist()
    [0.5, 1.0, 1.0]
    """
    inside, others = np.sort(scores[members > 0]), np.sort(scores[members == 0])[::-1]
    allowed = np.floor(len(others) * levels + 1e-9).astype(int)
    threshold = np.r_[others, -np.inf][np.minimum(allowed, len(others))]
    return np.asarray(1 - np.searchsorted(inside, threshold, side="right") / len(inside))


class Curve(NamedTuple):
    """A record's ROC on a square of 100 units, both axes logarithmic down to `edge`; `ticks`: rates and positions."""

    points: str
    ticks: list[tuple[str, float]]
    edge: float


def record_curve(record: Record) -> Curve | None:
    """The ROC of a record's scores; None if it has no scores, or only one class."""
    scores, members = np.array(record.member_scores), np.array(record.members, dtype=float)
    if not 0 < members.sum() < len(members) or len(scores) != len(members):
        return None
    others = int((members == 0).sum())
    edge = 1 / max(others, 2)
    levels = np.geomspace(edge, 1, POINTS)

    def place(rate: float) -> float:
        return round(100 * (1 - math.log(max(rate, edge)) / math.log(edge)), 1)

    rates = roc_at(scores, members, levels)
    points = " ".join(f"{place(x):g},{100 - place(y):g}" for x, y in zip(levels, rates, strict=True))
    ticks = [(f"{100 * rate:g} %", place(rate)) for rate in (0.001, 0.01, 0.1, 1.0) if rate >= edge]
    return Curve(points, ticks, edge)
