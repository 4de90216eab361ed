"""The lower bound of epsilon on mechanisms whose epsilon is known, and what must not help it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest
from torch import Tensor

from leakboard.defenses.noise.calibration import gaussian_epsilon, gaussian_mu
from leakboard.metrics.base import AuditTruth
from leakboard.metrics.epsilon_lower import EpsilonLower, epsilon_lower, upper_limit

AUDITS = 200
#: chance that a sound estimator fails one of the tests below by bad luck; the seeds are fixed besides
FALSE_ALARM = 1e-6


def gaussian_game(mu: float, trials: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores of the best attack on a Gaussian mechanism with mean shift mu."""
    generator = torch.Generator().manual_seed(seed)
    worlds = torch.rand(trials, generator=generator) < 0.5
    return torch.randn(trials, generator=generator, dtype=torch.float64) + mu * worlds, worlds


def answers_game(epsilon: float, trials: int, seed: int) -> tuple[Tensor, Tensor]:
    """Randomised response: the one mechanism at which a threshold proves all of epsilon."""
    generator = torch.Generator().manual_seed(seed)
    worlds = torch.rand(trials, generator=generator) < 0.5
    lies = torch.rand(trials, generator=generator) > 1 / (1 + math.exp(-epsilon))
    return (worlds ^ lies).double(), worlds


def rarely(count: int) -> bool:
    """Whether so many of the audits may go wrong if each does with at most 5 %."""
    return count <= binom.isf(FALSE_ALARM, AUDITS, 0.05)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_bound_stays_below_the_truth_of_a_gaussian_mechanism(epsilon: float) -> None:
    mu = gaussian_mu(epsilon, 1e-5)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(epsilon)
    bounds = [epsilon_lower(*gaussian_game(mu, 2000, seed)).epsilon for seed in range(AUDITS)]
    assert rarely(sum(bound > epsilon for bound in bounds))
    assert max(bounds) > 0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_bound_stays_below_the_truth_where_it_is_tight(epsilon: float) -> None:
    games = [answers_game(epsilon, 2000, seed) for seed in range(AUDITS)]
    bounds = [epsilon_lower(*game, delta=0.0) for game in games]
    assert rarely(sum(bound.epsilon > epsilon for bound in bounds))
    # the rates without their limits would be over it about every other time: the test can fail
    bare = [max(math.log((1 - b.fnr) / b.fpr), math.log((1 - b.fpr) / b.fnr)) for b in bounds if b.fpr and b.fnr]
    assert not rarely(sum(value > epsilon for value in bare))
    assert np.mean([bound.epsilon for bound in bounds]) > 0.5 * epsilon


def test_many_trials_prove_more_than_half_of_epsilon() -> None:
    mu = gaussian_mu(3.0, 1e-5)
    for seed in range(3):
        assert 0.55 * 3 <= epsilon_lower(*gaussian_game(mu, 400_000, seed)).epsilon <= 3


def test_equal_worlds_prove_nothing() -> None:
    bounds = [epsilon_lower(*gaussian_game(0.0, 1000, seed)).epsilon for seed in range(AUDITS)]
    assert rarely(sum(bound > 0 for bound in bounds))


def test_no_error_reaches_the_ceiling_whatever_the_direction() -> None:
    _, worlds = gaussian_game(0.0, 1000, 0)
    noise = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    for sign in (1.0, -1.0):
        bound = epsilon_lower(sign * (worlds + 0.9 * noise), worlds)
        assert bound.epsilon == bound.ceiling == pytest.approx(4.2, abs=0.1)


def test_nothing_is_chosen_on_the_half_that_counts() -> None:
    _, worlds = gaussian_game(0.0, 1000, 0)
    scores = worlds.double()
    scores[::2] = -scores[::2]  # the choosing half says that low means world 1
    bound = epsilon_lower(scores, worlds)
    assert bound.epsilon == 0
    assert bound.ceiling > 4
    scores[1::2] = -scores[1::2]  # another outcome of the half that counts
    again = epsilon_lower(scores, worlds)
    assert again.epsilon == again.ceiling
    assert again.choosing == bound.choosing > 3


def test_constant_scores_prove_nothing() -> None:
    _, worlds = gaussian_game(0.0, 400, 0)
    assert epsilon_lower(torch.ones(400), worlds).epsilon == 0


@pytest.mark.parametrize("errors", [0, 1, 7, 49, 50])
def test_the_limit_is_that_of_clopper_and_pearson(errors: int) -> None:
    other = binomtest(errors, 50, alternative="less").proportion_ci(0.975, method="exact").high
    assert upper_limit(np.array([errors]), 50)[0] == pytest.approx(other)


def test_what_cannot_be_scored_is_none_with_the_reason() -> None:
    metric = EpsilonLower()
    scores, worlds = gaussian_game(1.0, 100, 0)
    one_sided = torch.zeros(100, dtype=torch.bool)
    assert "one world only" in metric.score(AuditTruth(scores, one_sided, 1e-5)).reason
    scores[3] = math.nan
    assert metric.score(AuditTruth(scores, worlds, 1e-5)).reason == "1 of 100 scores are not finite"


def test_the_details_say_what_it_came_from() -> None:
    scores, worlds = gaussian_game(2.0, 1000, 0)
    details = EpsilonLower().score(AuditTruth(scores, worlds, 1e-3)).details
    assert details["trials"] == 1000
    assert details["evaluated_0"] + details["evaluated_1"] == 500
    assert details["delta"] == 1e-3
    assert details["fpr"] < details["fpr_limit"]
