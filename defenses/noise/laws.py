"""The distributions of Theorem 3 of Yang et al.: factors whose product is Gaussian.

    N(0, sigma^2)  =  X_1 ... X_m  Y_1 ... Y_n   in distribution,
    X_i ~ DN*(m)       =  beta exp{ -sum_{l>=1} [ G_{1/m,l} / (2l+1) - ln(1 + 1/l) / (2m) ] }
    Y_j ~ DN(sigma, n) =  beta exp{ ln(sqrt2 sigma)/n - G_{1/n} }

with G_a ~ Gamma(a, 1) and beta = +-1. Decisions (docs/decisions.md, 8.x): the server's factors are positive, because a
ReLU commutes only with positive scaling; only n = 1 is used.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln, polygamma, psi

from leakboard.core.randomness import Stream

Floats = NDArray[np.float64]
#: terms of the series for DN*(m); a Gaussian with the exact mean and variance of the rest replaces the others
TERMS = 64


def positive_dn(stream: Stream, m: int, *shape: int) -> Floats:
    """|DN*(m)|, the server's factor: positive.

    m = 1: sqrt(Gamma(3/2, 1)), that is chi_3 / sqrt2, exactly. m > 1: `TERMS` terms of the series and a Gaussian
    remainder, so that ln X has exactly the mean psi(3/2) / (2m) and the variance psi_1(3/2) / (4m) of the distribution
    (E X^s = [Gamma((3+s)/2) / Gamma(3/2)]^{1/m}).
    """
    if m == 1:
        drawn: Floats = np.sqrt(gammaincinv(1.5, stream.uniform(*shape)))
        return drawn
    index = np.arange(1, TERMS + 1)
    if m == 2:  # Gamma(1/2, 1) is half a squared normal, which is a hundred times faster to draw
        gammas: Floats = np.square(stream.normal(*shape, TERMS)) / 2
    else:
        gammas = np.asarray(gammaincinv(1 / m, stream.uniform(*shape, TERMS)), dtype=np.float64)
    log = -(gammas / (2 * index + 1) - np.log1p(1 / index) / (2 * m)).sum(-1)
    mean, variance = _remainder(m)
    found: Floats = np.exp(log + mean + math.sqrt(variance) * stream.normal(*shape))
    return found


def _remainder(m: int) -> tuple[float, float]:
    """Mean and variance of the terms beyond `TERMS`: those of the whole series minus those of the first terms."""
    index = np.arange(1, TERMS + 1)
    taken_mean = float(-(1 / m / (2 * index + 1) - np.log1p(1 / index) / (2 * m)).sum())
    taken_variance = float((1 / m / (2 * index + 1) ** 2).sum())
    return float(psi(1.5)) / (2 * m) - taken_mean, float(polygamma(1, 1.5)) / (4 * m) - taken_variance


def moment(m: int, s: float) -> float:
    """E |DN*(m)|^s = [Gamma((3+s)/2) / Gamma(3/2)]^{1/m}.

    >>> round(moment(1, 2), 6)
    1.5
    """
    return math.exp((gammaln((3 + s) / 2) - gammaln(1.5)) / m)


def signed_dn(stream: Stream, sigma: float, *shape: int) -> Floats:
    """DN(sigma, 1), the client's factor: uniform on (-sqrt2 sigma, sqrt2 sigma), variance 2 sigma^2 / 3.

    beta exp{ln(sqrt2 sigma) - E} with E exponential is a sign times sqrt2 sigma times a uniform.
    """
    return math.sqrt(2) * sigma * (2 * stream.uniform(*shape) - 1)
