"""Any `threshold` shares give the secret, fewer tell nothing."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.crypto.integers import is_prime
from leakboard.defenses.crypto.shamir import PRIME, evaluate, reconstruct, share

SECRET = bytes(range(32))
secrets = st.binary(min_size=32, max_size=32)


def stream(*names: str | int) -> Stream:
    return Stream(derive_key(bytes(32), "tests of shamir", *names))


def interpolated(points: dict[int, int], x: int) -> int:
    """Lagrange's formula in plain Python, at any x."""
    total = 0
    for i, value in points.items():
        weight = 1
        for j in points:
            if j != i:
                weight = weight * (x - j) * pow(i - j, -1, PRIME) % PRIME
        total += value * weight
    return int(total % PRIME)


def test_the_field_holds_every_secret() -> None:
    assert is_prime(PRIME)
    assert PRIME > 2**256


@settings(deadline=None)
@given(secret=secrets, data=st.data())
def test_any_threshold_of_the_shares_give_the_secret(secret: bytes, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=12, unique=True))
    threshold = data.draw(st.integers(1, len(indices)))
    shares = share(secret, threshold, indices, stream("any"))
    assert list(shares) == indices
    kept = data.draw(st.permutations(indices))[: data.draw(st.integers(threshold, len(indices)))]
    assert reconstruct({index: shares[index] for index in kept}, threshold) == secret


def test_every_subset_of_five() -> None:
    for threshold in range(1, 6):
        shares = share(SECRET, threshold, range(1, 6), stream("subsets", threshold))
        for kept in combinations(shares, threshold):
            assert reconstruct({index: shares[index] for index in kept}, threshold) == SECRET


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_least_and_the_greatest_secret(secret: bytes) -> None:
    assert reconstruct(share(secret, 2, [1, 2, 3], stream("border")), 2) == secret


def test_a_known_answer() -> None:
    """f(x) = 5 + 7x + 11x^2: shares by hand, not by `share`."""
    shares = {1: 23, 2: 63, 4: 209}
    assert reconstruct(shares, 3) == (5).to_bytes(32, "little")


@settings(max_examples=30, deadline=None)
@given(candidate=secrets, threshold=st.integers(2, 6))
def test_fewer_fit_every_secret(candidate: bytes, threshold: int) -> None:
    """Beside threshold - 1 true shares there is, for any secret at all, a last share that gives it."""
    shares = share(SECRET, threshold, range(1, threshold + 1), stream("fewer", threshold))
    known = {index: shares[index] for index in range(1, threshold)}
    last = interpolated({0: int.from_bytes(candidate, "little"), **known}, threshold)
    assert reconstruct({**known, threshold: last}, threshold) == candidate


def test_fewer_are_distributed_alike_for_every_secret() -> None:
    """Counted out over GF(7), threshold 3: every pair of shares comes from exactly one pair of coefficients."""
    for secret in range(7):
        pairs = Counter(
            (evaluate([secret, a, b], 2, 7), evaluate([secret, a, b], 5, 7)) for a, b in product(range(7), repeat=2)
        )
        assert pairs == Counter(product(range(7), repeat=2))


def test_the_coefficients_are_uniform_and_of_the_field() -> None:
    """400 polynomials of degree 2, their coefficients got back by interpolation: top bits even, all different.

    The number of coefficients in the field's upper half is binomial(800, 1/2): a false alarm beyond 5 sigma has
    probability 6e-7 (and the key is fixed).
    """
    found = []
    source = stream("coefficients")
    for _ in range(400):
        shares = share(SECRET, 3, [1, 2, 3], source)
        one, two = (shares[x] - int.from_bytes(SECRET, "little") for x in (1, 2))  # a + b, 2a + 4b
        square = (two - 2 * one) * pow(2, -1, PRIME) % PRIME
        found += [(one - square) % PRIME, square]
        assert evaluate([int.from_bytes(SECRET, "little"), *found[-2:]], 3, PRIME) == shares[3]
    assert len(set(found)) == 800
    upper = sum(coefficient > PRIME // 2 for coefficient in found)
    assert abs(upper - 400) < 5 * (800 / 4) ** 0.5


def test_the_stream_decides() -> None:
    first = share(SECRET, 3, [1, 2, 3], stream("a"))
    assert share(SECRET, 3, [1, 2, 3], stream("a")) == first
    assert all(share(SECRET, 3, [1, 2, 3], stream("b"))[index] != first[index] for index in first)


@settings(max_examples=50, deadline=None)
@given(wrong=st.integers(1, 3), error=st.integers(1, PRIME - 1))
def test_a_wrong_share_changes_the_result(wrong: int, error: int) -> None:
    shares = share(SECRET, 3, [1, 2, 3, 4], stream("wrong"))
    shares[wrong] = (shares[wrong] + error) % PRIME
    false = interpolated({index: shares[index] for index in (1, 2, 3)}, 0)
    assert false != int.from_bytes(SECRET, "little")
    if false < 2**256:
        assert reconstruct(shares, 3) == false.to_bytes(32, "little")
    else:
        with pytest.raises(ValueError, match="do not belong together"):
            reconstruct(shares, 3)


def test_shares_beyond_the_threshold_are_not_looked_at() -> None:
    shares = share(SECRET, 3, [1, 2, 3, 4], stream("wrong"))
    assert reconstruct({**shares, 4: 0}, 3) == SECRET


def test_what_is_no_secret_is_refused() -> None:
    """The constant polynomial 2^256 is an element of the field, but not 32 bytes."""
    with pytest.raises(ValueError, match="do not belong together"):
        reconstruct({1: 2**256, 2: 2**256}, 2)
    assert reconstruct({1: 2**256 - 1, 2: 2**256 - 1}, 2) == b"\xff" * 32


def test_refusals() -> None:
    shares = share(SECRET, 3, [1, 2, 3], stream("refusals"))
    with pytest.raises(ValueError, match="3 shares are needed; given: 2"):
        reconstruct({1: shares[1], 2: shares[2]}, 3)
    with pytest.raises(ValueError, match="threshold"):
        reconstruct(shares, 0)
    with pytest.raises(ValueError, match="index"):
        reconstruct({**shares, 0: 1}, 3)
    with pytest.raises(ValueError, match="index"):
        share(SECRET, 2, [0, 1, 2], stream("refusals"))
    with pytest.raises(ValueError, match="differ"):
        share(SECRET, 2, [1, 1, 2], stream("refusals"))
    with pytest.raises(ValueError, match="32 bytes"):
        share(SECRET[1:], 2, [1, 2], stream("refusals"))
    for threshold in (0, 4):
        with pytest.raises(ValueError, match="threshold"):
            share(SECRET, threshold, [1, 2, 3], stream("refusals"))
