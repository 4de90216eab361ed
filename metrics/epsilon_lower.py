"""What a distinguishing game proves: a lower bound of epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import betaincinv
from torch import Tensor

from leakboard.metrics.base import AuditMetric, AuditTruth, Score

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

#: chance that either error rate lies above its upper limit; two of them, so that both hold with 95 %
ALPHA = 0.025
#: the same while the threshold is chosen: with fewer errors than luck allows, a threshold in the far tail looks better
#: than it is. Of 0.025, 1e-3 and 1e-5, 1e-3 gave the largest mean bound on simulated Gaussian games, and held back
#: no confidence: the limits that count are those of the other half
CAREFUL = 1e-3
#: how many counts of each kind of error are tried, spread evenly by their logarithm
STEPS = 64


@dataclass(frozen=True)
class Bound:
    """A bound and its origin: error rates on the evaluated half, their upper limits, the ceiling.

    `choosing` is the bound of the rule on the half that chose it; it can also be used to choose among attacks.
    """

    epsilon: float
    fpr: float
    fnr: float
    fpr_limit: float
    fnr_limit: float
    ceiling: float
    choosing: float


def upper_limit(errors: Ints, trials: int, alpha: float = ALPHA) -> Floats:
    """Clopper and Pearson's one-sided upper limit of a rate: the 1 - alpha quantile of Beta(errors + 1, n - errors).

    >>> round(float(upper_limit(np.array([0]), 100)[0]), 4)
    0.0362
    """
    found = np.asarray(betaincinv(errors + 1.0, np.maximum(trials - errors, 1), 1 - alpha), dtype=np.float64)
    found[errors >= trials] = 1.0
    return found


def epsilon_lower(scores: Tensor, worlds: Tensor, delta: float = 1e-5) -> Bound:
    """The epsilon that the outcome of a distinguishing game proves, at 95 % confidence.

    Under (epsilon, delta)-differential privacy, every rule "score > t means world 1" has
    FPR e^epsilon + FNR >= 1 - delta and the same with the rates exchanged (Kairouz et al. 2015). So

    epsilon >= max( log((1 - delta - FNR+) / FPR+), log((1 - delta - FPR+) / FNR+), 0 )

    with FPR+, FNR+ the upper limits of Clopper and Pearson, each at 97.5 %. Threshold and direction are those with the
    largest bound (at wider limits) on the even trials. The bound is computed only on the odd trials, so the choice
    costs no confidence. The trials must be independent given their worlds. `ceiling` is what scores without errors
    would prove.

    Shapes: scores (N,), finite, higher means world 1; worlds bool (N,), both worlds present in both halves.
    Citation: Jagielski et al. 2020; Nasr et al. 2021.

    >>> import torch
    >>> worlds = torch.arange(4000) // 2 % 2 == 1
    >>> bound = epsilon_lower(worlds.double(), worlds)
    >>> round(bound.epsilon, 2), bound.epsilon == bound.ceiling
    (5.6, True)
    """
    values, bits = scores.detach().cpu().double().numpy(), worlds.cpu().numpy()
    sign, threshold, choosing = _rule(values[::2], bits[::2], delta)
    values, bits = sign * values[1::2], bits[1::2]
    n0, n1 = int((~bits).sum()), int(bits.sum())
    false_positives, false_negatives = int((values[~bits] > threshold).sum()), int((values[bits] <= threshold).sum())
    none = np.zeros(1, dtype=np.int64)
    fpr_limit, fnr_limit = upper_limit(none + false_positives, n0), upper_limit(none + false_negatives, n1)
    proved = _proved(fpr_limit, fnr_limit, delta)
    ceiling = _proved(upper_limit(none, n0), upper_limit(none, n1), delta)
    return Bound(
        max(float(proved[0]), 0.0),
        false_positives / n0,
        false_negatives / n1,
        float(fpr_limit[0]),
        float(fnr_limit[0]),
        max(float(ceiling[0]), 0.0),
        max(choosing, 0.0),
    )


def _proved(fpr: Floats, fnr: Floats, delta: float) -> Floats:
    """The larger of the two bounds for limits of the error rates; -inf if they prove nothing."""
    with np.errstate(divide="ignore"):
        first = np.log(np.maximum(1 - delta - fnr, 0.0)) - np.log(fpr)
        second = np.log(np.maximum(1 - delta - fpr, 0.0)) - np.log(fnr)
    found: Floats = np.maximum(first, second)
    return found


def _rule(values: Floats, bits: np.ndarray[Any, np.dtype[np.bool_]], delta: float) -> tuple[float, float, float]:
    """Direction (+1 or -1), threshold and bound: the largest on these trials, with wider limits (`CAREFUL`)."""
    best = (-math.inf, 1.0, 0.0)
    for sign in (1.0, -1.0):
        thresholds = _thresholds(sign * values, bits)
        zero, one = np.sort(sign * values[~bits]), np.sort(sign * values[bits])
        false_positives = len(zero) - np.searchsorted(zero, thresholds, side="right")
        false_negatives = np.searchsorted(one, thresholds, side="right")
        fpr, fnr = upper_limit(false_positives, len(zero), CAREFUL), upper_limit(false_negatives, len(one), CAREFUL)
        proved = _proved(fpr, fnr, delta)
        place = int(proved.argmax())
        if proved[place] > best[0]:
            best = (float(proved[place]), sign, float(thresholds[place]))
    return best[1], best[2], best[0]


def _thresholds(values: Floats, bits: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Thresholds halfway between neighbouring scores, at 0, 1, 2, ... errors of either kind, sparser as they grow."""
    ordered = np.unique(values)
    zero, one = np.sort(values[~bits])[::-1], np.sort(values[bits])
    above = np.searchsorted(ordered, zero[_counts(len(zero))])  # just over a score of world 0
    below = np.searchsorted(ordered, one[_counts(len(one))]) - 1  # just under a score of world 1
    lower = np.concatenate([above, below])
    padded = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    found: Floats = (padded[lower + 1] + padded[lower + 2]) / 2
    return found


def _counts(trials: int) -> Ints:
    """Counts of errors from 0 to the number of trials minus one."""
    return np.unique(np.geomspace(1, trials, STEPS).round().astype(np.int64)) - 1


def unusable(truth: AuditTruth) -> str:
    """Why a game has no metric; empty if it has. Each half of the trials must contain both worlds."""
    halves = truth.worlds[::2], truth.worlds[1::2]
    if any(bool(half.all()) or not bool(half.any()) for half in halves):
        return "one world only in a half of the trials: there must be more of them"
    bad = int((~truth.scores.isfinite()).sum())
    return f"{bad} of {len(truth.scores)} scores are not finite" if bad else ""


class EpsilonLower(AuditMetric):
    """Lower bound of epsilon that the game proves at 95 % confidence: one round, one pair of neighbouring batches.

    The details give the error rates on the evaluated half and the ceiling, which the same number of trials would prove
    without an error. A bound near its ceiling means that more trials are needed. Definition:
    `metrics.epsilon_lower.epsilon_lower`.
    """

    name: ClassVar[str] = "epsilon_lower"
    title: ClassVar[str] = "ε audited"
    hint: ClassVar[str] = "the true ε is at least this, at 95 % confidence"
    tolerance: ClassVar[float] = 0.7
    citation: ClassVar[str] = (
        "Jagielski et al., Auditing Differentially Private Machine Learning, NeurIPS 2020; Nasr et al., Adversary "
        "Instantiation, S&P 2021"
    )
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: AuditTruth) -> Score:
        """The bound; None if a half lacks a world or if scores are not finite."""
        if reason := unusable(truth):
            return Score(None, reason=reason)
        halves = truth.worlds[::2], truth.worlds[1::2]
        found = epsilon_lower(truth.scores, truth.worlds, truth.delta)
        details = {
            "trials": float(len(truth.scores)),
            "evaluated_0": float((~halves[1]).sum()),
            "evaluated_1": float(halves[1].sum()),
            "delta": truth.delta,
            "ceiling": found.ceiling,
            "choosing": found.choosing,
            "fpr": found.fpr,
            "fnr": found.fnr,
            "fpr_limit": found.fpr_limit,
            "fnr_limit": found.fnr_limit,
        }
        return Score(found.epsilon, details=details)
