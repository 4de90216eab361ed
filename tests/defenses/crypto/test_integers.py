"""Large integers against Python's own arithmetic. Draws have fixed keys; another key fails once in 1,000 times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.crypto.integers import (
    FixedBase,
    from_blob,
    integer,
    inverse,
    is_prime,
    power,
    random_below,
    random_bits,
    to_blob,
)

FALSE_ALARM = 1e-3
large = st.integers(0, 2**300)
moduli = st.integers(2, 2**256)


def stream(*names: str | int) -> Stream:
    return Stream(derive_key(bytes(32), "tests of integers", *names))


@given(large, large, moduli)
def test_power_is_pythons(base: int, exponent: int, modulus: int) -> None:
    assert power(base, exponent, modulus) == pow(base, exponent, modulus)


@given(large, moduli)
def test_inverse_and_negative_powers(value: int, modulus: int) -> None:
    if math.gcd(value, modulus) == 1:
        assert inverse(value, modulus) * value % modulus == 1 % modulus
        assert power(value, -3, modulus) == pow(value, -3, modulus)
    else:
        with pytest.raises(ZeroDivisionError):
            inverse(value, modulus)


def test_a_gmp_integer_equals_and_hashes_like_its_int() -> None:
    assert integer(2**200) == 2**200
    assert hash(integer(2**200)) == hash(2**200)


def test_primes_below_2000_and_pseudoprimes() -> None:
    by_division = [n for n in range(2, 2000) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(2000) if is_prime(n)] == by_division
    assert not any(is_prime(carmichael) for carmichael in (561, 1105, 6601, 825265, 3215031751))
    assert is_prime(2**521 - 1)
    assert not is_prime((2**127 - 1) * (2**521 - 1))


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 12])
def test_random_bits_are_uniform(bits: int) -> None:
    source = stream("bits", bits)
    drawn = [int(random_bits(source, bits)) for _ in range(40 * 2**bits)]
    counts = np.bincount(drawn, minlength=2**bits)
    assert len(counts) == 2**bits  # none at or above 2^bits
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("bound", [1, 2, 5, 100, 257])
def test_random_below_is_uniform(bound: int) -> None:
    source = stream("below", bound)
    counts = np.bincount([int(random_below(source, bound)) for _ in range(40 * bound)], minlength=bound)
    assert len(counts) == bound  # none at or above the bound
    assert bound == 1 or stats.chisquare(counts).pvalue > FALSE_ALARM


@given(st.lists(st.integers(0, 2**72 - 1)), st.integers(9, 20))
def test_blobs_come_back(values: list[int], width: int) -> None:
    blob = to_blob(values, width)
    assert len(blob) == width * len(values)
    assert from_blob(blob, width) == values


def test_a_blob_refuses_what_does_not_fit() -> None:
    with pytest.raises(OverflowError):
        to_blob([256], 1)
    with pytest.raises(OverflowError):
        to_blob([-1], 1)


@given(large, moduli, st.integers(1, 90), st.integers(1, 9), st.data())
def test_a_fixed_base_is_a_power(base: int, modulus: int, bits: int, window: int, data: st.DataObject) -> None:
    exponent = data.draw(st.integers(0, 2**bits - 1))
    table = FixedBase(base, modulus, bits, window)
    for tried in (exponent, 0, 2**bits - 1):
        assert table.power(tried) % modulus == pow(base, tried, modulus)


@pytest.mark.parametrize("exponent", [-1, 2**10, 2**12])
def test_a_fixed_base_refuses_exponents_beyond_its_table(exponent: int) -> None:
    with pytest.raises(ValueError, match="at most 10 bits"):
        FixedBase(3, 1009, bits=10, window=8).power(exponent)
