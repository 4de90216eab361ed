"""How often a coin may fall on one side before a test says that it is not fair."""

from __future__ import annotations

from scipy import stats

from leakboard.leaderboard.ranking.intervals import Interval


def binomial_band(n: int, p: float = 0.5, *, false_alarm: float) -> Interval:
    """The shares k/n of Binomial(n, p), without at most `false_alarm`/2 of the probability on each side.

    >>> binomial_band(100, false_alarm=0.05)
    Interval(low=0.4, high=0.6)
    """
    return Interval(*(float(end(false_alarm / 2, n, p)) / n for end in (stats.binom.ppf, stats.binom.isf)))
