"""Integer noise: how it is drawn, and what it costs in Renyi divergence.

A vector is scaled by s, rounded to integers at random, and noised with integers. The sum over clients carries several
such noises. Two laws:

- Discrete Gaussian (Canonne et al. 2020; summed: Kairouz et al. 2021): P[x] ~ exp(-x^2 / (2 sigma^2)).
- Skellam (Agarwal et al. 2021): the difference of two Poisson numbers of mean v/2, variance v; sums are Skellam again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from leakboard.core.randomness import Stream

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
#: the bounds of the Skellam law hold for whole orders; up to 64 each one, then in steps of 5 %
ORDERS: Floats = np.unique(np.concatenate([np.arange(2, 65), np.rint(64 * 1.05 ** np.arange(1, 200))])).astype(float)


def discrete_gaussian(stream: Stream, sigma: float, count: int) -> Integers:
    """`count` draws of the discrete Gaussian, by rejection from the discrete Laplace law (Canonne et al. 2020).

    With t = floor(sigma) + 1, |y| geometric of ratio exp(-1/t) and a fair sign (-0 is refused), y is accepted with
    probability exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)).
    """
    scale = math.floor(sigma) + 1
    found: list[Integers] = []
    missing = count
    while missing > 0:
        size, negative, coin = stream.uniform(3, missing + missing // 2 + 16)
        size, negative = np.floor(-scale * np.log(size)), negative < 0.5
        accepted = np.log(coin) < -np.square(size - sigma**2 / scale) / (2 * sigma**2)
        kept = accepted & ~(negative & (size == 0))
        found.append(np.where(negative, -size, size)[kept][:missing].astype(np.int64))
        missing -= len(found[-1])
    return np.concatenate(found)


def skellam(stream: Stream, variance: float, count: int) -> Integers:
    """`count` draws of Poisson(v/2) - Poisson(v/2), by numpy's generator under a key from the stream."""
    generator = np.random.Generator(np.random.Philox(key=stream.words(2)))
    first, second = generator.poisson(variance / 2, (2, count))
    found: Integers = first - second
    return found


def rounded(stream: Stream, values: Floats, longest: float = math.inf) -> Integers:
    """floor(x + u) with u uniform: integers of mean x; drawn again until their norm is at most `longest`."""
    while True:
        found = np.floor(values + stream.uniform(len(values)))
        if float(np.linalg.norm(found)) <= longest:
            return found.astype(np.int64)


def rounded_size(size: float, dimension: int, beta: float) -> tuple[float, float]:
    """(Delta_1, Delta_2): norms of a vector of norm `size` in d dimensions after random rounding.

    Delta_2 holds with probability at least 1 - beta (Kairouz et al. 2021); Delta_1 follows from it,
    because integers are at most their squares.

        Delta_2 = min{x + sqrt(d), sqrt(x^2 + d/4 + sqrt(2 ln(1/beta)) (x + sqrt(d)/2))}
        Delta_1 = Delta_2 min(sqrt(d), Delta_2)
    """
    root = math.sqrt(dimension)
    likely = size**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (size + root / 2)
    two = min(size + root, math.sqrt(likely))
    return two * min(root, two), two


def skellam_rdp(one: float, two: float, variance: float) -> Floats:
    """Renyi divergences of Skellam noise at `ORDERS`, for a shift of norms (one, two) (Agarwal et al. 2021)."""
    extra = ((2 * ORDERS - 1) * two**2 + 6 * one) / (4 * variance**2)
    return np.asarray(ORDERS * two**2 / (2 * variance) + np.minimum(extra, 3 * one / (2 * variance)), dtype=np.float64)


def gaussian_sum_rdp(one: float, two: float, sigma: float, shares: int, dimension: int) -> Floats:
    """The same for the sum of `shares` discrete Gaussians of parameter sigma each (Kairouz et al. 2021).

    tau bounds how far their sum is from one discrete Gaussian; one share is one.
    """
    tau = shares_apart(sigma, shares)
    whole = math.sqrt(shares) * sigma
    plain = (two / whole) ** 2
    first = ORDERS * plain / 2 + tau * dimension
    second = ORDERS / 2 * (plain + 2 * tau * one / whole + tau**2 * dimension)
    third = ORDERS / 2 * (two / whole + tau * math.sqrt(dimension)) ** 2
    found: Floats = np.minimum(np.minimum(first, second), third)
    return found


def shares_apart(sigma: float, shares: int) -> float:
    """tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 sigma^2 k / (k + 1)).

    >>> shares_apart(3.0, 1), shares_apart(3.0, 2) < 1e-37
    (0.0, True)
    """
    k = np.arange(1, shares)
    return float(10 * np.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)).sum())


def epsilon_of(rdp: Floats, times: int, delta: float) -> float:
    """The epsilon of `times` releases with these divergences at `ORDERS` (Canonne et al. 2020).

    min over orders a of  T rdp(a) + ln((a - 1) / a) - (ln delta + ln a) / (a - 1)
    """
    found = times * rdp + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(found.min()))
