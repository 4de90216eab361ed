"""How sure a number is: intervals for rates and means. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv, betaincinv, ndtri, stdtrit  # scipy.stats takes a second to import

from leakboard.core.seeds import derive_seed

Strata = Sequence[int | str]


class Interval(NamedTuple):
    """A closed interval; an end that nothing is known about is infinite."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether the value lies inside or on an end."""
        return self.low <= value <= self.high


def _tail(confidence: float, successes: float = 0, trials: float = 0) -> float:
    """The probability left on each side; refuses an impossible confidence or count."""
    if not 0 < confidence < 1 or not 0 <= successes <= trials:
        raise ValueError(f"Impossible: confidence {confidence} (allowed: in (0, 1)) or {successes} of {trials} trials.")
    return (1 - confidence) / 2


def _floats(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A non-empty vector of finite numbers, or a ValueError."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError("Values must be a non-empty, one-dimensional list of finite numbers.")
    return array


def wilson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a rate: (p̂ + z²/2n ± z·√(p̂(1−p̂)/n + z²/4n²)) / (1 + z²/n).

    Without trials nothing is known: [0, 1]. Wilson, "Probable inference", JASA 22 (1927).

    >>> "{:.4f} {:.4f}".format(*wilson(8, 10))
    '0.4902 0.9433'
    """
    z = -float(ndtri(_tail(confidence, successes, trials)))
    if trials == 0:
        return Interval(0.0, 1.0)
    rate, scale = successes / trials, 1 + z**2 / trials
    centre = rate + z**2 / (2 * trials)
    spread = z * float(np.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)))
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # at 0 and n the ends are exactly 0 and 1; rounding must not leave them a hair beside
    return Interval(low if successes else 0.0, high if successes < trials else 1.0)


def rate_difference(
    first: int,
    of_first: int,
    second: int,
    of_second: int,
    confidence: float = 0.95,
    *,
    weight: float = 1.0,
    correlation: float = 0.0,
) -> Interval:
    """Newcombe's interval of p₁ − w·p₂: from d − r(p₁−l₁, w(u₂−p₂)) to d + r(u₁−p₁, w(p₂−l₂)).

    d = p₁ − w·p₂, r(x, y) = √(x² − 2ρxy + y²), and (l, u) are Wilson's intervals. For independent rates ρ = 0; for
    two rates over the same records ρ is the correlation of their outcomes. Newcombe, Statistics in Medicine 17 (1998),
    method 10 of both papers (pp. 873 and 2635); Zou and Donner, ibid. 27 (2008), for w and ρ. The first example is his.

    >>> "{:.4f} {:.4f}".format(*rate_difference(56, 70, 48, 80))
    '0.0524 0.3339'
    """
    if not of_first or not of_second:
        return Interval(-weight, 1.0)
    one, other = wilson(first, of_first, confidence), wilson(second, of_second, confidence)
    p, q = first / of_first, second / of_second

    def reach(x: float, y: float) -> float:
        return float(np.sqrt(max(x**2 - 2 * correlation * x * y + y**2, 0.0)))

    middle = p - weight * q
    low = middle - reach(p - one.low, weight * (other.high - q))
    return Interval(low, middle + reach(one.high - p, weight * (q - other.low)))


def clopper_pearson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """The exact interval of a rate: the α/2 quantile of Beta(k, n−k+1) to the 1−α/2 quantile of Beta(k+1, n−k).

    Covers at least as often as it says, for every rate. Clopper and Pearson, Biometrika 26 (1934).

    >>> "{:.4f} {:.4f}".format(*clopper_pearson(8, 10))
    '0.4439 0.9748'
    """
    tail, failures = _tail(confidence, successes, trials), trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    return Interval(low, float(betainccinv(successes + 1, failures, tail)) if failures else 1.0)


def effective_trials(shares: npt.ArrayLike, size: int, confidence: float = 0.95) -> float:
    """How many independent trials n batches of `size` images are worth, given the share p_i of hits in each batch.

    n_eff = p̂(1−p̂) / (s²/n) · (t(N−1) / t(n−1))², held within [n, N]: s² is the variance of the p_i, N = n·size, t
    Student's quantiles. Images that share a gradient tend to fall together, so N trials would claim too much; the
    second factor is for the few batches that s² comes from. Where all batches are 0 or all are 1 the variance tells
    nothing, and a batch counts once; so it does for batches of one image. Put into the interval of a rate this is the
    method of Korn and Graubard, Survey Methodology 24 (1998).

    >>> effective_trials([0, 1, 1, 0], 1), effective_trials([0, 0, 0, 0], 8), effective_trials([0.5, 0.25] * 4, 4)
    (4.0, 4.0, 32.0)
    """
    array, tail = _floats(shares), _tail(confidence)
    batches, images, rate = array.size, array.size * size, float(array.mean())
    if batches == 1 or rate in (0.0, 1.0):
        return float(batches)
    variance = float(array.var(ddof=1)) / batches
    if variance == 0:
        return float(images)
    few = (float(stdtrit(images - 1, tail)) / float(stdtrit(batches - 1, tail))) ** 2
    return float(min(max(rate * (1 - rate) / variance * few, batches), images))


def bootstrap_mean(
    values: npt.ArrayLike, strata: Strata, *, seed: int, draws: int = 2000, confidence: float = 0.95
) -> Interval:
    """Percentile bootstrap of the mean over targets; each stratum (seed) is resampled within itself.

    [q(α/2), q(1−α/2)] of `draws` resampled means. Efron and Tibshirani, "An Introduction to the Bootstrap" (1993).
    A stratum of one value shows no spread: where there is one, all strata are pooled (wider, never falsely sure).
    Of a single value nothing is known: (−∞, ∞). With fewer than about 20 targets the interval is somewhat too narrow.

    >>> "{:.2f} {:.2f}".format(*bootstrap_mean([1, 2, 3, 4], [0, 0, 0, 0], seed=0))
    '1.50 3.50'
    """
    array, tail = _floats(values), _tail(confidence)
    if len(strata) != array.size or draws < 1:
        raise ValueError(f"Each value needs a stratum, and draws ≥ 1; given: {array.size}, {len(strata)}, {draws}.")
    if array.size == 1:
        return Interval(-np.inf, np.inf)
    codes = np.unique(np.asarray(strata), return_inverse=True)[1]
    if np.bincount(codes).min() == 1:
        codes = np.zeros_like(codes)
    array = array[np.lexsort((array, codes))]  # a canonical order: the answer must not depend on the given one
    random = np.random.default_rng(derive_seed(seed, "bootstrap"))
    parts = np.split(array, np.cumsum(np.bincount(codes))[:-1])
    # one draw at a time: the memory stays that of one resample, however many targets there are
    means = [sum(part[random.integers(part.size, size=part.size)].sum() for part in parts) for _ in range(draws)]
    low, high = np.quantile(np.array(means) / array.size, [tail, 1 - tail])
    mean = array.mean()  # rounding can leave the mean of equal values a hair outside
    return Interval(float(min(low, mean)), float(max(high, mean)))


def split_halves(n: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices of the targets on which the worst attack is chosen, and of those on which it is reported.

    Disjoint, sorted, together all n; an odd one is reported. With n = 1 both are that one target: the attack is then
    chosen on what is reported, and a table should say so.

    >>> [half.size for half in split_halves(5, seed=0)]
    [2, 3]
    """
    if n < 1:
        raise ValueError(f"There must be at least one target to split; given: {n}.")
    mixed = np.random.default_rng(derive_seed(seed, "halves")).permutation(n)
    return np.sort(mixed[: max(n // 2, 1)]), np.sort(mixed[n // 2 :])
