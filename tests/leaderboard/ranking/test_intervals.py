"""Intervals and ranks against scipy, hand-computed numbers, exact coverage and simulations with fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from leakboard.leaderboard.ranking.intervals import (
    Interval,
    auc_interval,
    binomial_band,
    bootstrap_mean,
    clopper_pearson,
    paired_difference,
    split_halves,
    wilson,
)

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


@given(n=st.integers(1, 400), p=st.floats(0, 1), false_alarm=st.floats(1e-9, 0.5))
@settings(max_examples=60, deadline=None)
def test_the_band_keeps_its_false_alarm(n: int, p: float, false_alarm: float) -> None:
    low, high = (round(end * n) for end in binomial_band(n, p, false_alarm=false_alarm))
    assert 0 <= low <= high <= n
    slack = 1e-12
    assert stats.binom.cdf(low - 1, n, p) <= false_alarm / 2 + slack
    assert stats.binom.sf(high, n, p) <= false_alarm / 2 + slack


def test_a_band_without_coins_is_refused() -> None:
    with pytest.raises(ValueError, match="n ≥ 1"):
        binomial_band(0, false_alarm=0.1)


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


def test_pairing_sees_what_separate_intervals_miss() -> None:
    random = np.random.default_rng(3)
    base = random.normal(scale=10, size=32)
    worse, strata = base + 0.5 + random.normal(scale=0.2, size=32), [0] * 32
    difference = paired_difference(worse, base, strata, seed=0)
    assert difference.low > 0.3
    assert difference.high < 0.7
    assert bootstrap_mean(base, strata, seed=0).high > bootstrap_mean(worse, strata, seed=0).low
    assert paired_difference(base, base, strata, seed=0) == (0, 0)
    with pytest.raises(ValueError, match="same targets"):
        paired_difference([1.0, 2.0], [1.0], [0, 0], seed=0)


def test_the_auc_interval_by_hand() -> None:
    # V10 = (1, 1, 2/3), V01 = (2/3, 1, 1): A = 8/9, variance = 2·(1/27)/3
    low, high = auc_interval([0.9, 0.8, 0.4, 0.6, 0.3, 0.1], [True] * 3 + [False] * 3)
    assert (low, high) == pytest.approx((8 / 9 - 1.959964 * math.sqrt(2 / 81), 1.0))


@given(data=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=6, max_size=40), shift=st.integers(-3, 3))
@settings(max_examples=60, deadline=None)
def test_the_auc_interval_by_its_definition(data: list[tuple[int, bool]], shift: int) -> None:
    """The O(m·n) formula, ties counted half; monotone changes of the score and swapped roles change nothing."""
    data += [(1, True), (2, True), (1, False), (3, False)]
    scores, members = np.array([float(s) for s, _ in data]), [m for _, m in data]
    truth = np.array(members)
    wins = np.array([[(x > y) + 0.5 * (x == y) for y in scores[~truth]] for x in scores[truth]])
    spread = math.sqrt(wins.mean(1).var(ddof=1) / len(wins) + wins.mean(0).var(ddof=1) / wins.shape[1])
    low, high = auc_interval(scores, members)
    area = roc_auc_score(truth, scores)
    expected = (max(area - 1.959964 * spread, 0), min(area + 1.959964 * spread, 1))
    assert (low, high) == pytest.approx(expected, abs=1e-6)
    assert 0 <= low <= area <= high <= 1
    assert auc_interval(np.exp(scores) + shift, members) == pytest.approx((low, high))
    assert auc_interval(-scores, [not m for m in members]) == pytest.approx((low, high))


def test_the_auc_interval_agrees_with_a_bootstrap() -> None:
    random = np.random.default_rng(2)
    members = [True] * 150 + [False] * 150
    inside, outside = np.round(random.normal(0.8, 1, 150), 1), np.round(random.normal(0, 1, 150), 1)  # with ties
    areas = []
    for _ in range(600):
        gaps = np.subtract.outer(random.choice(inside, 150), random.choice(outside, 150))
        areas.append((gaps > 0).mean() + (gaps == 0).mean() / 2)
    ours = auc_interval(np.concatenate([inside, outside]), members)
    assert ours == pytest.approx(tuple(np.quantile(areas, [0.025, 0.975])), abs=0.015)


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_the_auc_interval_covers(gap: float) -> None:
    """500 runs of 60 + 60 scores; the band around 95 % has a false alarm of 10⁻⁴."""
    random, runs = np.random.default_rng(8), 500
    members, truth = [True] * 60 + [False] * 60, float(stats.norm.cdf(gap / math.sqrt(2)))
    hits = [
        auc_interval(random.normal(size=120) + gap * np.array(members), members).contains(truth) for _ in range(runs)
    ]
    assert binomial_band(runs, 0.95, false_alarm=1e-4).contains(float(np.mean(hits)))


def test_a_perfect_auc_is_not_certain() -> None:
    members = [True] * 8 + [False] * 20
    scores = [1.0] * 8 + [0.0] * 20
    assert auc_interval(scores, members) == clopper_pearson(8, 8)
    assert auc_interval([-s for s in scores], members) == clopper_pearson(0, 8)
    assert auc_interval([2.0, 1.0, 0.0], [True, False, False]) == (0, 1)
    assert auc_interval([1.0] * 6, [True, False] * 3) == (0.5, 0.5)
    for bad in ([True, True], [False, False], [True]):
        with pytest.raises(ValueError, match="one member"):
            auc_interval([1.0, 2.0], bad)


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
