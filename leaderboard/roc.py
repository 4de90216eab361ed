"""The ROC of a membership attack, with a band."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leaderboard.ranking import STATISTICS_SEED, Evidence

Floats = NDArray[np.float64]
DRAWS = 200  # resamples behind the band of a single seed
LEVELS = 121  # false positive rates at which a curve is told


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
