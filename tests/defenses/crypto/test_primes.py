"""Safe primes are prime twice, of the right size, and the sieve throws away what it should and no more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.crypto.integers import is_prime
from leakboard.defenses.crypto.primes import safe_prime, small_primes, survivors


def stream(*names: str | int) -> Stream:
    return Stream(derive_key(bytes(32), "tests of primes", *names))


@settings(max_examples=25, deadline=None)
@given(st.integers(16, 160), st.integers(0, 2**32))
def test_safe_primes(bits: int, seed: int) -> None:
    found = safe_prime(stream("safe", seed), bits)
    assert found.bit_length() == bits
    assert found >> (bits - 2) == 3
    assert is_prime(found)
    assert is_prime(found // 2)
    assert found == safe_prime(stream("safe", seed), bits)


def test_safe_primes_differ_and_are_never_too_small() -> None:
    source = stream("several")
    assert len({safe_prime(source, 128) for _ in range(20)}) == 20
    with pytest.raises(ValueError, match="at least 16 bits"):
        safe_prime(source, 15)


@given(st.integers(10**4, 10**6).map(lambda k: 2 * k + 1))
def test_the_sieve_keeps_what_trial_division_keeps(start: int) -> None:
    primes = small_primes(100).tolist()[1:]
    kept = [k for k in range(300) if all((start + 2 * k) % r and (2 * (start + 2 * k) + 1) % r for r in primes)]
    assert survivors(start, 300, 100).tolist() == kept
