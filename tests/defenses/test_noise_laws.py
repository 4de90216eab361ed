"""The laws of Theorem 3. Keys are fixed; with another key a Kolmogorov–Smirnov test here fails once in 1,000 times."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakboard.defenses.noise.laws import Floats, moment, positive_dn, signed_dn
from tests.defenses.makings import key

DRAWS = 200_000
FALSE_ALARM = 1e-3
SIGMA = 0.789


def fits(drawn: Floats, law: str, *arguments: float) -> float:
    """The p-value of the Kolmogorov–Smirnov test."""
    return float(stats.kstest(drawn, law, args=arguments).pvalue)


@cache
def halves(name: str) -> Floats:
    """|DN*(2)|, drawn once per name."""
    return positive_dn(key("dn*2", name), 2, DRAWS)


def test_dn_star_1_is_chi_3_over_root_2() -> None:
    drawn = positive_dn(key("dn*1"), 1, DRAWS)
    assert fits(drawn, "chi", 3, 0, 1 / math.sqrt(2)) > FALSE_ALARM


def test_dn_is_uniform() -> None:
    edge = math.sqrt(2) * SIGMA
    drawn = signed_dn(key("dn"), SIGMA, DRAWS)
    assert fits(drawn, "uniform", -edge, 2 * edge) > FALSE_ALARM
    assert float(np.abs(drawn).max()) < edge
    assert drawn.var() == pytest.approx(2 * SIGMA**2 / 3, rel=4 * math.sqrt(0.8 / DRAWS))  # 4 standard errors


def test_the_definition_of_dn_with_its_exponential_is_the_same_law() -> None:
    """beta exp{ln(sqrt2 sigma) - G_1}, drawn to the letter."""
    stream = key("letter")
    exponential = -np.log(stream.uniform(DRAWS))
    sign = np.where(stream.uniform(DRAWS) < 0.5, -1.0, 1.0)
    letter = sign * np.exp(math.log(math.sqrt(2) * SIGMA) - exponential)
    assert stats.ks_2samp(letter, signed_dn(key("dn"), SIGMA, DRAWS)).pvalue > FALSE_ALARM


def test_two_factors_and_the_clients_are_gaussian() -> None:
    assert fits(halves("r") * halves("s") * signed_dn(key("dn"), SIGMA, DRAWS), "norm", 0, SIGMA) > FALSE_ALARM


def test_one_factor_and_the_clients_are_gaussian() -> None:
    drawn = positive_dn(key("dn*1"), 1, DRAWS) * signed_dn(key("dn"), SIGMA, DRAWS)
    assert fits(drawn, "norm", 0, SIGMA) > FALSE_ALARM


def test_the_wrong_pairing_is_not_gaussian() -> None:
    """DN*(1) DN*(1) DN and DN*(2) DN: the tests above could have failed."""
    two = positive_dn(key("a"), 1, DRAWS) * positive_dn(key("b"), 1, DRAWS) * signed_dn(key("c"), 1.0, DRAWS)
    one = halves("r") * signed_dn(key("c"), 1.0, DRAWS)
    assert fits(two, "norm", 0, 1) < 1e-50
    assert fits(one, "norm", 0, 1) < 1e-50


def test_two_halves_multiply_to_the_whole() -> None:
    assert fits(halves("r") * halves("s"), "chi", 3, 0, 1 / math.sqrt(2)) > FALSE_ALARM


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("s", [-1.0, 1.0, 2.0, 3.0])
def test_moments(m: int, s: float) -> None:
    """Within 4 standard errors of the formula: a false alarm once in 15,000."""
    draws = DRAWS if m < 3 else DRAWS // 100  # only 1 and 2 are used, and 3 is slow
    drawn = (halves("r") if m == 2 else positive_dn(key("moments", m), m, draws)) ** s
    error = math.sqrt(moment(m, 2 * s) - moment(m, s) ** 2) / math.sqrt(draws)
    assert abs(drawn.mean() - moment(m, s)) < 4 * error


def test_products_in_one_row_are_only_marginally_gaussian() -> None:
    """a = r eta_1, b = r eta_2 share r: corr(a^2, b^2) is 1/3, not 0 (shared factors make them dependent)."""
    r = positive_dn(key("row"), 1, DRAWS)
    a, b = r * signed_dn(key("a"), 1.0, DRAWS), r * signed_dn(key("b"), 1.0, DRAWS)
    assert np.corrcoef(a**2, b**2)[0, 1] == pytest.approx(1 / 3, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), m=st.integers(1, 4), sigma=st.floats(1e-6, 1e6))
def test_the_server_draws_positive_and_the_client_signed_numbers(seed: int, m: int, sigma: float) -> None:
    assert bool((positive_dn(key(seed), m, 50, 2) > 0).all())
    drawn = signed_dn(key(seed), sigma, 50, 2)
    assert float(drawn.min()) < 0 < float(drawn.max())  # false alarm: 2^-99
    assert float(np.abs(drawn).max()) <= math.sqrt(2) * sigma
    assert np.array_equal(drawn, signed_dn(key(seed), sigma, 50, 2))
