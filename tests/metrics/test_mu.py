"""The Gaussian-DP estimate against other people's code, and by the coverage of its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, bootstrap, multivariate_normal, norm
from sklearn.metrics import roc_auc_score

from leakboard.defenses.noise.calibration import gaussian_epsilon, gaussian_mu
from leakboard.metrics.base import AuditTruth
from leakboard.metrics.mu import Mu, auc_deviation, exceeds, mu_of_game
from tests.metrics.test_epsilon_lower import AUDITS, FALSE_ALARM, gaussian_game


def rarely(count: int, share: float) -> bool:
    """Whether so many of the audits may go wrong if each does with this chance (false alarm: `FALSE_ALARM`)."""
    return count <= binom.isf(FALSE_ALARM, AUDITS, share)


def test_the_estimate_is_the_probit_of_scikit_learns_auc() -> None:
    scores, worlds = gaussian_game(0.7, 500, 0)
    other = math.sqrt(2) * norm.ppf(roc_auc_score(worlds.numpy(), scores.numpy()))
    assert mu_of_game(scores, worlds).mu == pytest.approx(other)
    rescaled = scores.exp()  # only the order of the scores counts
    assert mu_of_game(rescaled, worlds) == mu_of_game(scores, worlds)


@pytest.mark.parametrize("mu", [0.0, 0.455, 1.13, 3.0])
def test_the_deviation_of_the_auc_is_that_of_scipys_bivariate_normal(mu: float) -> None:
    h = mu / math.sqrt(2)
    both = multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]]).cdf([h, h])
    area, zeros, ones = norm.cdf(h), 300, 200
    variance = (area * (1 - area) + (zeros + ones - 2) * (both - area**2)) / (zeros * ones)
    assert auc_deviation(mu, zeros, ones) == pytest.approx(math.sqrt(variance), rel=1e-3)


def test_the_interval_is_near_that_of_scipys_bootstrap() -> None:
    scores, worlds = gaussian_game(0.719, 700, 1)

    def estimate(one: np.ndarray, zero: np.ndarray) -> float:
        truth = np.r_[np.ones(len(one)), np.zeros(len(zero))]
        return math.sqrt(2) * float(norm.ppf(roc_auc_score(truth, np.r_[one, zero])))

    given = scores[worlds].numpy(), scores[~worlds].numpy()
    other = bootstrap(given, estimate, n_resamples=400, method="percentile", vectorized=False, rng=0)
    found = mu_of_game(scores, worlds)
    assert (found.low, found.high) == pytest.approx(tuple(other.confidence_interval), abs=0.05)


@pytest.mark.parametrize("mu", [0.0, 0.455, 0.719, 1.13, 3.0])
def test_the_interval_holds_the_truth_as_often_as_it_says(mu: float) -> None:
    """At least 95 % of the intervals, up to `FALSE_ALARM`; each end by itself misses in about 2.5 %."""
    found = [mu_of_game(*gaussian_game(mu, 700, seed)) for seed in range(AUDITS)]
    assert rarely(sum(not one.low <= mu <= one.high for one in found), 0.05)
    assert np.mean([one.mu for one in found]) == pytest.approx(mu, abs=0.06)  # never negative: .03 too large at 0
    assert np.median([one.high - one.low for one in found]) < 0.6


def test_noise_half_as_large_as_claimed_is_told_from_the_right_one() -> None:
    """700 trials, epsilon 3: the estimate says so in every game, the bound in none; both at fixed seeds."""
    mu = gaussian_mu(3.0)
    right = [gaussian_game(mu, 700, seed) for seed in range(AUDITS)]
    wrong = [gaussian_game(2 * mu, 700, seed) for seed in range(AUDITS)]
    assert all(exceeds(*game, mu) for game in wrong)
    assert rarely(sum(exceeds(*game, mu) for game in right), 0.025)
    assert max(mu_of_game(*game).mu for game in right) < min(mu_of_game(*game).mu for game in wrong)


def test_exceeding_means_that_the_whole_interval_lies_above() -> None:
    games = [gaussian_game(0.85, 400, seed) for seed in range(30)]
    said = [exceeds(*game, 0.6) for game in games]
    assert said == [mu_of_game(*game).low > 0.6 for game in games]
    assert 0 < sum(said) < len(said)


def test_separated_worlds_have_a_lower_limit_and_no_upper_one() -> None:
    """The limit is where a Gaussian game of this size is separated with chance 2.5 %: 20 + 20 trials, 4,000 games."""
    worlds = torch.arange(40) >= 20
    found = mu_of_game(worlds.double(), worlds)
    assert found.separated
    assert found.mu == found.low
    assert found.high == math.inf
    random = np.random.default_rng(0)
    zeros, ones = random.normal(size=(4000, 20)), random.normal(size=(4000, 20)) + found.low
    separated = int((ones.min(1) > zeros.max(1)).sum())
    assert binom.ppf(5e-4, 4000, 0.025) <= separated <= binom.ppf(1 - 5e-4, 4000, 0.025)  # false alarm 1e-3
    score = Mu().score(AuditTruth(worlds.double(), worlds, 1e-5))
    assert score.details["separated"] == 1
    assert "high" not in score.details
    assert "epsilon_high" not in score.details
    assert all(math.isfinite(value) for value in score.details.values())


def test_scores_that_tell_nothing_or_point_the_wrong_way_give_zero() -> None:
    _, worlds = gaussian_game(0.0, 400, 0)
    constant = mu_of_game(torch.ones(400), worlds)
    assert (constant.mu, constant.low) == (0.0, 0.0)
    assert 0.1 < constant.high < 0.4  # a coin that was tossed 400 times, not a certainty
    assert mu_of_game(-worlds.double(), worlds).mu == 0.0


def test_the_details_give_the_epsilon_at_the_claimed_delta_and_both_halves() -> None:
    scores, worlds = gaussian_game(1.0, 1000, 0)
    score = Mu().score(AuditTruth(scores, worlds, 1e-3))
    details = score.details
    assert score.value is not None
    assert details["epsilon"] == pytest.approx(gaussian_epsilon(score.value, 1e-3))
    assert details["epsilon_low"] < details["epsilon"] < details["epsilon_high"]
    assert details["evaluated"] == mu_of_game(scores[1::2], worlds[1::2]).mu
    assert details["choosing"] == mu_of_game(scores[::2], worlds[::2]).mu
    assert details["evaluated_high"] - details["evaluated_low"] > details["high"] - details["low"]


def test_what_cannot_be_scored_is_none_with_the_reason() -> None:
    scores, worlds = gaussian_game(1.0, 100, 0)
    assert "one world only" in Mu().score(AuditTruth(scores, torch.zeros(100, dtype=torch.bool), 1e-5)).reason
    scores[3] = math.nan
    assert Mu().score(AuditTruth(scores, worlds, 1e-5)).reason == "1 of 100 scores are not finite"
