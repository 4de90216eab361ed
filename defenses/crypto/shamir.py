"""Shamir's secret sharing of 32-byte secrets (Shamir 1979), as secure aggregation uses it (Bonawitz et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from leakboard.core.randomness import Stream
from leakboard.defenses.crypto.integers import integer, inverse, random_below

SECRET_BYTES = 32
PRIME = 2**257 - 93


def evaluate(coefficients: Sequence[int], x: int, prime: int) -> int:
    """sum_k coefficients[k] x^k mod prime, by Horner's rule.

    >>> evaluate([3, 0, 2], 4, 1009)
    35
    """
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % prime
    return value


def share(secret: bytes, threshold: int, indices: Sequence[int], stream: Stream) -> dict[int, int]:
    """Shares f(i) of f(0) = secret, with f of degree below `threshold` and otherwise uniform over GF(PRIME).

    Any `threshold` shares determine the secret; fewer are uniform numbers for any secret.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret must have {SECRET_BYTES} bytes; given: {len(secret)}")
    _check_indices(indices)
    if len(set(indices)) < len(indices):
        raise ValueError("the indices must be different")
    if not 1 <= threshold <= len(indices):
        raise ValueError(
            f"the threshold must be between 1 and the number of shares ({len(indices)}); given: {threshold}"
        )
    first = integer(int.from_bytes(secret, "little"))
    coefficients = [first, *(random_below(stream, PRIME) for _ in range(threshold - 1))]
    return {index: evaluate(coefficients, index, PRIME) for index in indices}


def reconstruct(shares: Mapping[int, int], threshold: int) -> bytes:
    """The secret f(0) from `threshold` of the shares (those with the smallest indices); the others are ignored.

    A wrong share gives a wrong secret, and is not noticed if that happens to fit into 32 bytes (half of the time).
    """
    if threshold < 1:
        raise ValueError(f"the threshold must be at least 1; given: {threshold}")
    if len(shares) < threshold:
        raise ValueError(f"{threshold} shares are needed; given: {len(shares)}")
    _check_indices(list(shares))
    used = tuple(sorted(shares)[:threshold])
    weights = _weights_at_zero(used)
    secret = sum(weight * shares[index] for weight, index in zip(weights, used, strict=True)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("the shares do not belong together: their value at 0 is not a secret")
    return int(secret).to_bytes(SECRET_BYTES, "little")


def _check_indices(indices: Sequence[int]) -> None:
    if not all(1 <= index < PRIME for index in indices):
        raise ValueError("an index must be at least 1: the value at 0 is the secret")


@lru_cache(maxsize=16)  # a round reconstructs many secrets from shares of the same clients
def _weights_at_zero(indices: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights: f(0) = sum_i f(i) prod_{j != i} j / (j - i)."""
    weights = []
    for i in indices:
        above = below = integer(1)
        for j in indices:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        weights.append(above * inverse(below, PRIME) % PRIME)
    return tuple(weights)
