"""Intervals and ranks against scipy, hand-computed numbers, exact coverage and simulations with fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakboard.leaderboard.ranking.intervals import (
    Interval,
    bootstrap_mean,
    clopper_pearson,
    split_halves,
    wilson,
)
from tests.coins import binomial_band

FLOATS = st.floats(-1e6, 1e6)
COUNTS = st.integers(0, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
RATES = [pytest.param(wilson, id="wilson"), pytest.param(clopper_pearson, id="clopper_pearson")]


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "trials"), [(0, 8), (1, 8), (8, 8), (7, 32), (500, 1000), (1, 10_000)])
def test_rates_agree_with_scipy(successes: int, trials: int, confidence: float) -> None:
    test = stats.binomtest(successes, trials)
    for ours, theirs in (
        (wilson, test.proportion_ci(confidence, method="wilson")),
        (clopper_pearson, test.proportion_ci(confidence, method="exact")),
    ):
        assert ours(successes, trials, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_rates_of_the_textbook() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81/263 and 0/20
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert clopper_pearson(81, 263) == pytest.approx((0.2527, 0.3676), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert clopper_pearson(0, 20) == pytest.approx((0.0, 0.1684), abs=5e-5)


@pytest.mark.parametrize("method", RATES)
@given(counts=COUNTS, confidence=st.floats(0.01, 0.999))
@settings(max_examples=60, deadline=None)
def test_rates_hold_their_estimate(
    method: Callable[[int, int, float], Interval], counts: tuple[int, int], confidence: float
) -> None:
    successes, trials = counts
    low, high = method(successes, trials, confidence)
    assert 0 <= low <= high <= 1
    assert low <= (successes / trials if trials else 0.5) <= high
    mirrored = method(trials - successes, trials, confidence)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((low, high), abs=1e-9)


def test_rates_cover_as_often_as_they_say() -> None:
    """Exact coverage, by summing the binomial law: no simulation, no false alarm."""
    trials = 32
    intervals = {method: [method(k, trials) for k in range(trials + 1)] for method in (wilson, clopper_pearson)}
    coverage = {}
    for method, each in intervals.items():
        rates = np.linspace(0.01, 0.99, 99)
        inside = [[interval.contains(rate) for interval in each] for rate in rates]
        coverage[method] = (np.array(inside) * stats.binom.pmf(np.arange(trials + 1), trials, rates[:, None])).sum(1)
    assert coverage[clopper_pearson].min() >= 0.95
    assert coverage[wilson].mean() == pytest.approx(0.95, abs=0.01)
    assert coverage[wilson].min() > 0.83


@pytest.mark.parametrize(("successes", "trials", "confidence"), [(-1, 3, 0.95), (4, 3, 0.95), (1, 3, 0.0), (1, 3, 1.0)])
def test_impossible_rates_are_refused(successes: int, trials: int, confidence: float) -> None:
    for method in (wilson, clopper_pearson):
        with pytest.raises(ValueError, match="Impossible"):
            method(successes, trials, confidence)


@given(values=st.lists(FLOATS, min_size=1, max_size=12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_bootstrap_holds_the_mean_in_any_order(values: list[float], data: st.DataObject) -> None:
    strata = data.draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values)))
    order = data.draw(st.permutations(range(len(values))))
    interval = bootstrap_mean(values, strata, seed=1, draws=50)
    mixed = bootstrap_mean([values[i] for i in order], [strata[i] for i in order], seed=1, draws=50)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert interval == pytest.approx(mixed, abs=slack)
    assert interval.low - slack <= np.mean(values) <= interval.high + slack


def test_the_bootstrap_stays_within_its_strata() -> None:
    apart = [0.0] * 8 + [100.0] * 8
    assert bootstrap_mean(apart, [0] * 8 + [1] * 8, seed=0) == (50.0, 50.0)
    pooled = bootstrap_mean(apart, [0] * 16, seed=0)
    assert pooled.low < 35
    assert pooled.high > 65


def test_a_value_alone_makes_nothing_certain() -> None:
    assert bootstrap_mean([3.0], [0], seed=0) == (-math.inf, math.inf)
    # one value a seed: the strata are pooled, else the interval would have no width
    assert bootstrap_mean([1.0, 2.0, 3.0], [0, 1, 2], seed=0) == bootstrap_mean([1.0, 2.0, 3.0], [0, 0, 0], seed=0)


def test_the_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(5).gamma(2.0, size=64)
    ours = bootstrap_mean(values, [0] * 64, seed=0, draws=4000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(0))
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.03)


def test_the_bootstrap_covers() -> None:
    """At 32 targets the percentile interval covers about 93 %; the band of 93 % has a false alarm of 10⁻⁴."""
    random, runs = np.random.default_rng(11), 300
    hits = [bootstrap_mean(random.normal(size=32), [0] * 32, seed=r, draws=200).contains(0) for r in range(runs)]
    assert binomial_band(runs, 0.93, false_alarm=1e-4).contains(float(np.mean(hits)))


@pytest.mark.parametrize(
    ("values", "strata", "draws"), [([], [], 9), ([1.0, math.nan], [0, 0], 9), ([1.0], [0, 0], 9), ([1.0], [0], 0)]
)
def test_what_cannot_be_resampled_is_refused(values: list[float], strata: list[int], draws: int) -> None:
    with pytest.raises(ValueError, match=r"finite|stratum"):
        bootstrap_mean(values, strata, seed=0, draws=draws)


@given(n=st.integers(2, 200), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_halves_are_disjoint_and_complete(n: int, seed: int) -> None:
    choose, report = split_halves(n, seed)
    assert sorted([*choose, *report]) == list(range(n))
    assert (choose.size, report.size) == (n // 2, n - n // 2)
    assert all(np.array_equal(a, b) for a, b in zip((choose, report), split_halves(n, seed), strict=True))


def test_halves_of_one_and_none() -> None:
    choose, report = split_halves(1, seed=0)
    assert list(choose) == list(report) == [0]
    assert any(list(split_halves(8, 0)[0]) != list(split_halves(8, seed)[0]) for seed in (1, 2, 3))
    with pytest.raises(ValueError, match="at least one"):
        split_halves(0, seed=0)
