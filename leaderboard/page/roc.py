"""The ROC of a membership attack: of all seeds with a band, for charts, and of one record as a small drawing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakboard.leaderboard.ranking.evidence import STATISTICS_SEED, Evidence
from leakboard.leaderboard.records.record import Record

Floats = NDArray[np.float64]
DRAWS = 200  # resamples behind the band of a single seed
LEVELS = 121  # false positive rates at which a curve is told


POINTS = 49  # of the small drawing in a record


class Line(NamedTuple):
    """A ROC: true positive rate and band at each false positive rate."""

    defense: str
    attack: str
    plain: bool
    fpr: Floats
    tpr: Floats
    low: Floats
    high: Floats


def roc_at(scores: Floats, members: Floats, levels: Floats) -> Floats:
    """Highest true positive rate with at most each of these false positive rates; tied scores move together.

    >>> roc_at(np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.5, 1.0])).tolist()
    [0.5, 1.0, 1.0]
    """
    inside, others = np.sort(scores[members > 0]), np.sort(scores[members == 0])[::-1]
    allowed = np.floor(len(others) * levels + 1e-9).astype(int)
    threshold = np.r_[others, -np.inf][np.minimum(allowed, len(others))]
    return np.asarray(1 - np.searchsorted(inside, threshold, side="right") / len(inside))


def roc_line(defense: str, evidence: Evidence, *, plain: bool) -> Line | None:
    """The mean ROC over seeds with the least and the largest of them as its band; None where a seed lacks a class.

    The band of a single seed is the central 95 % of resamples of its members and its others.
    """
    parts = []
    for seed in np.unique(evidence.strata):
        rows = evidence.strata == seed
        parts.append((evidence.values["score"][rows], evidence.values["member"][rows]))
    if any(not 0 < members.sum() < len(members) for _, members in parts):
        return None
    fewest = min(int((members == 0).sum()) for _, members in parts)
    levels = np.geomspace(1 / fewest, 1, LEVELS)
    curves = np.array([roc_at(scores, members, levels) for scores, members in parts])
    low, high = curves.min(0), curves.max(0)
    if len(parts) == 1:
        low, high = np.quantile(_resampled(*parts[0], levels), [0.025, 0.975], axis=0)
    return Line(defense, evidence.attack, plain, levels, curves.mean(0), low, high)


def _resampled(scores: Floats, members: Floats, levels: Floats) -> Floats:
    generator = np.random.default_rng(STATISTICS_SEED)
    groups = [np.flatnonzero(members == kind) for kind in (0.0, 1.0)]
    drawn = (np.concatenate([generator.choice(group, len(group)) for group in groups]) for _ in range(DRAWS))
    return np.array([roc_at(scores[rows], members[rows], levels) for rows in drawn])


class Curve(NamedTuple):
    """A record's ROC on a square of 100 units, both axes logarithmic down to `edge`; `ticks` are rates and places."""

    points: str
    ticks: list[tuple[str, float]]
    edge: float


def record_curve(record: Record) -> Curve | None:
    """The ROC of the scores that a record holds; None where it has none, or one class only."""
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
