"""Logarithms against plain `pow`: every value of small ranges, the borders of large ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.defenses.crypto.discrete_log import (
    KEY_MODULUS,
    DiscreteLog,
    NotInRange,
    default_table_bits,
    discrete_log_of,
)
from leakboard.defenses.crypto.functional import MODP_2048
from leakboard.defenses.crypto.integers import is_prime

P = 2**128 - 15449  # safe
G = 4


@pytest.fixture(scope="module")
def large() -> DiscreteLog:
    return DiscreteLog(G, P, 2**26, table_bits=14)


@pytest.mark.parametrize("bound", [0, 1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("table_bits", [0, 1, 3, 4, 16])
def test_every_value_of_a_small_range(bound: int, table_bits: int) -> None:
    logarithm = DiscreteLog(G, P, bound, table_bits)
    found = {x: logarithm.solve(pow(G, x, P)) for x in range(-bound, bound + 1)}
    assert found == {x: x for x in found}
    # The giant steps reach beyond the bound; what they find there is still refused.
    for x in range(bound + 1, bound + 20):
        for beyond in (x, -x):
            with pytest.raises(NotInRange):
                logarithm.solve(pow(G, beyond, P))


def test_the_whole_of_a_tiny_group() -> None:
    """The squares modulo 23, of order 11, are the powers of 4 from -5 to 5; nothing else has a logarithm."""
    logarithm = DiscreteLog(4, 23, 5, table_bits=2)
    powers = {pow(4, x, 23): x for x in range(-5, 6)}
    assert len(powers) == 11
    for value in range(23):
        if value in powers:
            assert logarithm.solve(value) == powers[value]
        else:
            with pytest.raises(NotInRange):
                logarithm.solve(value)


@settings(max_examples=30, deadline=None)
@given(x=st.integers(-(2**26), 2**26))
def test_a_large_range(large: DiscreteLog, x: int) -> None:
    assert large.solve(pow(G, x, P)) == x
    assert large.solve(pow(G, x, P) + P) == x


def test_the_borders_of_a_large_range(large: DiscreteLog) -> None:
    for x in (2**26, -(2**26), 2**26 - 1, 1 - 2**26, 0):
        assert large.solve(pow(G, x, P)) == x
    for x in (2**26 + 1, -(2**26) - 1, 2**40):
        with pytest.raises(NotInRange):
            large.solve(pow(G, x, P))


def test_the_group_that_is_used_with_its_default_table() -> None:
    """The powers of 2 below 2^2048 are the ones whose remainders could coincide: they are all in this table."""
    bound = 2**20
    logarithm = discrete_log_of(MODP_2048.g, MODP_2048.p, bound)
    assert discrete_log_of(MODP_2048.g, MODP_2048.p, bound) is logarithm
    for x in (*range(0, 2200, 7), -1, -2048, bound // 3, bound - 1, bound, -bound):
        assert logarithm.solve(pow(2, x, MODP_2048.p)) == x
    for x in (bound + 1, -bound - 1):
        with pytest.raises(NotInRange):
            logarithm.solve(pow(2, x, MODP_2048.p))


def test_remainders_of_powers_of_two_differ() -> None:
    """Of the low bits and of Python's own hash that is not so: the reason for a modulus of our own."""
    assert is_prime(KEY_MODULUS)
    small = range(2048)
    assert len({pow(2, x, KEY_MODULUS) for x in small}) == 2048
    assert len({hash(2**x) for x in small}) == 61
    assert len({2**x % 2**64 for x in small}) == 65


def test_a_false_hit_is_not_believed() -> None:
    """An element with the remainder of another: value = g^3 + KEY_MODULUS, of some large logarithm or none."""
    logarithm = DiscreteLog(G, P, 50)
    with pytest.raises(NotInRange):
        logarithm.solve(G**3 + KEY_MODULUS)


@pytest.mark.parametrize(("bound", "bits"), [(10, 16), (2**18, 16), (2**20, 18), (2**22, 20), (2**26, 20)])
def test_the_size_of_the_table(bound: int, bits: int) -> None:
    assert default_table_bits(bound) == bits


def test_refusals() -> None:
    with pytest.raises(ValueError, match="not be negative"):
        DiscreteLog(G, P, -1)
    with pytest.raises(ValueError, match="order of g"):
        DiscreteLog(4, 23, 6)
