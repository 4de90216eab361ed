"""The Gaussian-DP parameter mu that fits the scores of a distinguishing game."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri, owens_t
from torch import Tensor

from leakboard.defenses.noise.calibration import gaussian_epsilon
from leakboard.metrics.auc import auc
from leakboard.metrics.base import AuditMetric, AuditTruth, Score
from leakboard.metrics.epsilon_lower import unusable

#: how many standard deviations an interval of 95 % reaches
REACH = 1.959964
#: no game tells a larger mu from a perfect separation: its error rates are below 1e-89
MOST = 40.0


@dataclass(frozen=True)
class Estimate:
    """mu with its 95 % interval. `separated`: the scores of the two worlds do not overlap; `high` is then infinite."""

    mu: float
    low: float
    high: float
    auc: float
    separated: bool


def mu_of_game(scores: Tensor, worlds: Tensor) -> Estimate:
    """The mu at which N(0, 1) and N(mu, 1) are as distinguishable as these two worlds, with a 95 % interval.

    mu = sqrt(2) Phi^-1(AUC)

    The AUC needs only the order of the scores, so any increasing function of the log-likelihood ratio will do. No
    threshold has to be chosen: all trials count. Under mu-Gaussian DP its variance is known (`auc_deviation`). The
    interval holds all mu whose AUC(mu) = Phi(mu / sqrt 2) is within 1.96 deviations *at that mu* of the measured one
    (like Wilson's interval for a rate, so it has a width at AUC 1/2 and near 1 too). mu is never negative: an AUC below
    1/2 gives 0. If the worlds are perfectly separated there is no finite estimate: mu is then its own lower limit, at
    which this many trials are separated with probability 2.5 %, and `high` is infinite.

    Shapes: scores (N,), finite, higher means world 1; worlds bool (N,), both present.
    Citation: Dong, Roth and Su 2022 (Gaussian DP); Bamber 1975 (variance); Wilson 1927 (the interval's form).

    >>> import torch
    >>> from scipy.special import ndtri
    >>> scores = torch.from_numpy(ndtri((torch.arange(400) + 0.5).numpy() / 400))
    >>> found = mu_of_game(torch.cat([scores, scores + 0.7]), torch.arange(800) >= 400)
    >>> f"{found.mu:.2f} [{found.low:.2f}, {found.high:.2f}]"
    '0.70 [0.55, 0.84]'
    """
    area, ones = auc(scores, worlds), int(worlds.sum())
    zeros = len(worlds) - ones
    if area == 1.0:
        least = _separated_limit(zeros, ones)
        return Estimate(least, least, math.inf, area, separated=True)

    def excess(sign: float) -> Callable[[float], float]:
        return lambda mu: float(ndtr(mu / math.sqrt(2))) - area + sign * REACH * auc_deviation(mu, zeros, ones)

    low, high = (_root(excess(sign)) for sign in (1.0, -1.0))
    mu = math.sqrt(2) * float(ndtri(area)) if area > 0.5 else 0.0
    return Estimate(mu, low, high, area, separated=False)


def exceeds(scores: Tensor, worlds: Tensor, mu: float) -> bool:
    """Whether the whole interval of `mu_of_game` lies above this mu: wrong for a true mu in 2.5 % of games."""
    ones = int(worlds.sum())
    reach = REACH * auc_deviation(mu, len(worlds) - ones, ones)
    return auc(scores, worlds) > float(ndtr(mu / math.sqrt(2))) + reach


def auc_deviation(mu: float, zeros: int, ones: int) -> float:
    """The standard deviation of the AUC of N(0, 1) and N(mu, 1) with this many scores of each.

    Var = (A (1 - A) + (n0 + n1 - 2) (Q - A^2)) / (n0 n1), A = Phi(h), Q = Phi_2(h, h; 1/2) = A - 2 T(h, 1 / sqrt 3)

    with h = mu / sqrt 2 and T Owen's function. Q is the probability that two scores of one world both exceed one of the
    other.

    >>> round(auc_deviation(0.0, 100, 100), 4)  # sqrt((n0 + n1 + 1) / (12 n0 n1)), as Mann and Whitney have it
    0.0409
    """
    area = float(ndtr(mu / math.sqrt(2)))
    both = area - 2 * float(owens_t(mu / math.sqrt(2), 1 / math.sqrt(3)))
    variance = (area * (1 - area) + (zeros + ones - 2) * max(0.0, both - area * area)) / (zeros * ones)
    return math.sqrt(variance)


def _root(excess: Callable[[float], float]) -> float:
    """The mu at which an increasing function becomes positive, within [0, `MOST`]; infinite if it never does."""
    if excess(0.0) >= 0:
        return 0.0
    return math.inf if excess(MOST) < 0 else float(brentq(excess, 0.0, MOST))


def _separated_limit(zeros: int, ones: int) -> float:
    """The mu at which every score of world 1 exceeds every score of world 0 with probability 2.5 %.

    P = integral of n0 phi(x) Phi(x)^(n0 - 1) Phi(mu - x)^n1 dx
    """

    def chance(mu: float) -> float:
        def density(x: float) -> float:
            log = math.log(zeros) - x * x / 2 + (zeros - 1) * float(log_ndtr(x)) + ones * float(log_ndtr(mu - x))
            return math.exp(log) / math.sqrt(2 * math.pi)

        return float(quad(density, -10, mu + 10, limit=200, points=[mu / 2])[0])

    return float(brentq(lambda mu: chance(mu) - 0.025, 0.0, MOST)) if chance(0.0) < 0.025 else 0.0


class Mu(AuditMetric):
    """The mu of Gaussian differential privacy that fits the game's scores, from all trials.

    It is an estimate, not a proof: it assumes that the worlds are two Gaussians. The details give its 95 % interval,
    the corresponding epsilon at the claimed delta with its interval, and the same for the even trials (`choosing`) and
    the odd ones (`evaluated`). Definition: `metrics.mu.mu_of_game`.
    """

    name: ClassVar[str] = "mu"
    title: ClassVar[str] = "μ̂"
    hint: ClassVar[str] = "estimate of Gaussian DP, from all trials"
    tolerance: ClassVar[float] = 0.3
    citation: ClassVar[str] = (
        "Dong, Roth and Su, Gaussian Differential Privacy, JRSS B 2022; Bamber, J. Math. Psych. 1975"
    )
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: AuditTruth) -> Score:
        """The estimate; None if a half lacks a world or scores are not finite. An infinite upper limit is left out."""
        if reason := unusable(truth):
            return Score(None, reason=reason)
        found = mu_of_game(truth.scores, truth.worlds)
        if found.high == 0.0:  # no mu at all has so small an AUC: "0 [0, 0]" would read as proved privacy
            return Score(None, reason=f"the scores point the wrong way: their AUC is {found.auc:.3f}")
        odd = mu_of_game(truth.scores[1::2], truth.worlds[1::2])
        details = {
            "auc": found.auc,
            "separated": float(found.separated),
            "choosing": mu_of_game(truth.scores[::2], truth.worlds[::2]).mu,
            "evaluated": odd.mu,
            "evaluated_separated": float(odd.separated),
            **_ends("", found, truth.delta),
            **_ends("evaluated_", odd, truth.delta),
        }
        return Score(found.mu, details=details)


def _ends(prefix: str, found: Estimate, delta: float) -> dict[str, float]:
    """The limits of an interval, and the corresponding epsilons; an infinite limit is left out."""
    numbers = {"low": found.low, "high": found.high}
    epsilons = {"epsilon": found.mu, "epsilon_low": found.low, "epsilon_high": found.high}
    numbers |= {name: gaussian_epsilon(mu, delta) for name, mu in epsilons.items()}
    return {prefix + name: value for name, value in numbers.items() if math.isfinite(value)}
