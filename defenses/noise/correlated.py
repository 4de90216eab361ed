"""Noise that is correlated over rounds: banded square-root factors in closed form (Kalinin and Lampert 2024).

Training adds up gradients, so what counts is the noise of A x for a fixed lower triangular A (with momentum beta the
entry of lag j is 1 + beta + ... + beta^j). Factor A = B C, release x + sens(C) sigma C^{-1} z with z independent: this
is one Gaussian mechanism on C x for the whole run, and the noise of A x is that of B z. All matrices here are Toeplitz.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def square_root(count: int, momentum: float = 0.0) -> Floats:
    """The first `count` coefficients of C with C^2 = A: c_j = sum_i r_{j-i} r_i beta^i, r_k = binom(2k, k) / 4^k.

    >>> square_root(4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    lags = np.arange(1, count)
    roots = np.concatenate([[1.0], np.cumprod((2 * lags - 1) / (2 * lags))])
    found: Floats = np.convolve(roots, roots * momentum ** np.arange(count))[:count]
    return found


def workload(count: int, momentum: float = 0.0) -> Floats:
    """The coefficients of A: how far a gradient has moved the weights j rounds later, in learning rates."""
    found: Floats = np.cumsum(momentum ** np.arange(count))
    return found


def sensitivity(band: Floats, rounds: int, times: int, epoch: int) -> float:
    """How far C x can move if x moves by one unit in at most `times` rounds, no three of them within `epoch` + 1.

    A record is in one batch of each epoch of m rounds, in a new order each: rounds p_0 < p_1 < ... with
    p_{i+2} - p_i > m. With at most m coefficients, only neighbours p_i, p_{i+1} overlap, by
    g(d) = sum_t c_t c_{t+d}. Their distances satisfy d_i + d_{i+1} > m, and g decreases, so

        sens^2 <= k ||c||^2 + 2 [g(1) if k is even] + 2 floor((k - 1) / 2) max_d (g(d) + g(m + 1 - d))

    One coefficient gives sqrt(k), as independent noise does.
    """
    if len(band) > min(epoch, rounds):
        raise ValueError(f"at most {min(epoch, rounds)} coefficients are covered; given: {len(band)}")
    overlaps = np.array([float(band[: len(band) - d] @ band[d:]) if d < len(band) else 0.0 for d in range(epoch + 1)])
    pairs = float((overlaps[1:] + overlaps[:0:-1]).max())
    extra = (overlaps[1] if times % 2 == 0 else 0.0) + (times - 1) // 2 * pairs
    return float(np.sqrt(times * overlaps[0] + 2 * extra))


def sensitivity_in_every_round(band: Floats, rounds: int) -> float:
    """The same for somebody who takes part in every round: ||C 1||."""
    partial = np.cumsum(band)
    whole = np.full(rounds, partial[-1])
    whole[: len(partial)] = partial[:rounds]
    return float(np.linalg.norm(whole))


def deviations(band: Floats, rounds: int) -> Floats:
    """The deviation of n_t = (C^{-1} z)_t in each round (rounds,), for z of deviation 1: it grows with t.

    >>> deviations(np.array([1.0, 0.5]), 3).round(3)
    array([1.   , 1.118, 1.146])
    """
    found: Floats = np.sqrt(np.cumsum(np.square(_inverse(band, rounds))))
    return found


def inverted(band: Floats, rounds: int) -> Floats:
    """C^{-1} (rounds, rounds): how n follows from z.

    >>> inverted(np.array([1.0, 0.5]), 3)
    array([[ 1.  ,  0.  ,  0.  ],
           [-0.5 ,  1.  ,  0.  ],
           [ 0.25, -0.5 ,  1.  ]])
    """
    lags = np.arange(rounds)[:, None] - np.arange(rounds)
    found: Floats = np.where(lags < 0, 0.0, _inverse(band, rounds)[lags])
    return found


def _inverse(band: Floats, rounds: int) -> Floats:
    """The coefficients of C^{-1} by lag."""
    found = np.zeros(rounds)
    found[0] = 1.0
    for lag in range(1, rounds):
        near = found[max(0, lag - len(band) + 1) : lag]
        found[lag] = -float(near @ band[1 : len(near) + 1][::-1])
    return found


def accumulated(band: Floats, rounds: int, momentum: float = 0.0) -> float:
    """The deviation of the noise in the last weights, ||last row of A C^{-1}||, for independent z of deviation 1.

    >>> accumulated(np.ones(1), 100)
    10.0
    """
    wanted = workload(rounds, momentum)
    found = np.zeros(rounds)
    for lag in range(rounds):  # the row r solves r C = (last row of A), from the last column on
        near = found[max(0, lag - len(band) + 1) : lag]
        found[lag] = wanted[lag] - float(near @ band[1 : len(near) + 1][::-1])
    return float(np.linalg.norm(found))
