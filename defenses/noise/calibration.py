"""From a privacy budget to the noise, and back: Gopa's condition, the paper's version of it, and the exact one.

A client k sends its value plus its own noise (variance s_eta^2) plus pairwise noise (s_Delta^2 per edge). If all noise
were Gaussian, the view would have covariance Sigma = s_eta^2 I + s_Delta^2 L with L the graph's Laplacian, and a change
of one client's value by S would cost theta = S^2 e_k^T Sigma^{-1} e_k (a squared Mahalanobis distance).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

#: values that the paper does not give and that we chose (docs/decisions.md, 8.10)
KAPPA = 10.0
DELTA = 1e-5
Edge = tuple[int, int]


@dataclass(frozen=True)
class Sigmas:
    """A client's own noise (`own`) and that of each of its edges (`pairwise`), for sensitivity 1."""

    own: float
    pairwise: float

    def times(self, sensitivity: float) -> Sigmas:
        """The noise for another sensitivity."""
        return Sigmas(self.own * sensitivity, self.pairwise * sensitivity)


def gopa_theta(epsilon: float, delta: float = DELTA) -> float:
    """The largest theta that Gopa's condition (Sabater et al. 2022) allows.

    epsilon >= theta/2 + sqrt(theta)  and  (epsilon - theta/2)^2 >= 2 ln(2 / (delta sqrt(2 pi))) theta

    >>> round(gopa_theta(3.0), 4)
    0.3531
    """
    c = math.log(2 / (delta * math.sqrt(2 * math.pi)))

    def slack(root: float) -> float:
        theta = root * root
        return min(epsilon - theta / 2 - root, epsilon - theta / 2 - math.sqrt(2 * c * theta))

    return float(brentq(slack, 0.0, math.sqrt(2 * epsilon), xtol=1e-15)) ** 2


def gopa_sigmas(epsilon: float, clients: int, delta: float = DELTA, kappa: float = KAPPA) -> Sigmas:
    """Gopa's theorem on the complete graph: theta = (1/s_eta^2 + 1/s_Delta^2) / n, s_Delta^2 = kappa s_eta^2.

    >>> round(gopa_sigmas(3.0, 5).own, 3)
    0.789
    """
    own = math.sqrt((1 + 1 / kappa) / (clients * gopa_theta(epsilon, delta)))
    return Sigmas(own, math.sqrt(kappa) * own)


def paper_sigmas(epsilon: float, clients: int, delta: float = DELTA, kappa: float = KAPPA) -> Sigmas:
    """The paper's Theorem 8, which lacks the squares: theta = (1/s_eta + 1/s_Delta) / K."""
    own = (1 + 1 / math.sqrt(kappa)) / (clients * gopa_theta(epsilon, delta))
    return Sigmas(own, math.sqrt(kappa) * own)


def local_sigma(epsilon: float, delta: float = DELTA) -> float:
    """Noise without neighbours: theta = 1 / sigma^2."""
    return 1 / math.sqrt(gopa_theta(epsilon, delta))


def exact_theta(sigmas: Sigmas, clients: int, edges: Iterable[Edge]) -> float:
    """The largest theta over clients: max_k [(s_eta^2 I + s_Delta^2 L)^{-1}]_kk on this graph."""
    laplacian = np.zeros((clients, clients))
    for a, b in edges:
        laplacian[a, a] += 1
        laplacian[b, b] += 1
        laplacian[a, b] -= 1
        laplacian[b, a] -= 1
    covariance = sigmas.own**2 * np.eye(clients) + sigmas.pairwise**2 * laplacian
    return float(np.linalg.inv(covariance).diagonal().max())


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a Gaussian mechanism with mean shift mu (Balle and Wang 2018).

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
    """
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))


def gaussian_epsilon(mu: float, delta: float = DELTA) -> float:
    """The epsilon of a Gaussian mechanism with mean shift mu at this delta; inf for mu = inf."""
    if mu == 0:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    top = mu * mu / 2 + mu * 40
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return float(brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, top, xtol=1e-12))


def gaussian_mu(epsilon: float, delta: float = DELTA) -> float:
    """The mean shift at which a Gaussian mechanism spends exactly epsilon at delta (analytic Gaussian mechanism)."""
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, 10 * math.sqrt(epsilon) + 10, xtol=1e-14))


def corrected_sigmas(mu: float, clients: int, edges: Iterable[Edge], kappa: float = KAPPA) -> Sigmas:
    """Noise on this graph that gives a round exactly the mean shift mu: theta = mu^2."""
    theta = mu * mu
    unit = exact_theta(Sigmas(1.0, math.sqrt(kappa)), clients, edges)
    own = math.sqrt(unit / theta)
    return Sigmas(own, math.sqrt(kappa) * own)


def composed_epsilon(mu: float, compositions: int, delta: float = DELTA) -> float:
    """The epsilon of `compositions` Gaussian mechanisms of mean shift mu each.

    T of them are one Gaussian mechanism of mean shift sqrt(T) mu (Dong et al. 2022), whose epsilon is exact. An
    accountant gives the same up to its grid (tested with dp-accounting), but takes a second for each value.

    >>> round(composed_epsilon(0.5, 100), 3)
    33.104
    """
    return gaussian_epsilon(mu * math.sqrt(compositions), delta)
