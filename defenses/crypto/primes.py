"""Safe primes p = 2p' + 1 with p and p' prime: a sieve over windows from a random start, then primality tests."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leakboard.core.randomness import Stream
from leakboard.defenses.crypto.integers import is_prime, random_bits

# GMP runs Baillie-PSW and then `rounds` - 24 rounds of Miller-Rabin: none in the first test, 40 in the last.
QUICK, THOROUGH = 24, 64
LEAST_BITS = 16


@lru_cache(maxsize=8)
def small_primes(limit: int) -> NDArray[np.int64]:
    """All primes below `limit` (Eratosthenes).

    >>> small_primes(20).tolist()
    [2, 3, 5, 7, 11, 13, 17, 19]
    """
    alive = np.ones(max(limit, 2), dtype=bool)
    alive[:2] = False
    for candidate in range(2, int(limit**0.5) + 1):
        if alive[candidate]:
            alive[candidate * candidate :: candidate] = False
    return np.flatnonzero(alive)


def survivors(start: int, count: int, limit: int) -> NDArray[np.int64]:
    """The k < count for which neither p' = start + 2k nor 2p' + 1 has an odd prime factor below `limit`.

    Modulo a prime r: p' = 0 at k = -start / 2, and 2p' + 1 = 0, so p' = (r - 1) / 2, at k = ((r - 1) / 2 - start) / 2.
    """
    alive = np.ones(count, dtype=bool)
    primes = small_primes(limit)[1:]
    rests = np.array([int(start % prime) for prime in primes.tolist()], dtype=np.int64)
    half = (primes + 1) // 2  # the inverse of 2
    of_p_prime = -rests * half % primes
    of_p = ((primes - 1) // 2 - rests) * half % primes
    for prime, first, second in zip(primes.tolist(), of_p_prime.tolist(), of_p.tolist(), strict=True):
        alive[first::prime] = False
        alive[second::prime] = False
    return np.flatnonzero(alive)


def safe_prime(stream: Stream, bits: int) -> int:
    """A random safe prime of exactly `bits` bits, the top two of them set.

    The product of two such primes of equal length therefore has exactly 2 * bits bits. One odd p' in about 0.18 bits^2
    is suitable; windows and sieve grow as bits^2 / 4. Searching upwards from a random start is not exactly
    uniform, but loses almost no entropy (Brandt and Damgård, CRYPTO 1992).
    """
    if bits < LEAST_BITS:
        raise ValueError(f"a safe prime must have at least {LEAST_BITS} bits; given: {bits}")
    size = bits * bits // 4
    while True:
        start = random_bits(stream, bits - 1) | 3 << (bits - 3) | 1
        for step in survivors(start, size, size).tolist():
            half = start + 2 * step
            whole = 2 * half + 1
            if whole.bit_length() > bits:
                break
            if all(is_prime(value, rounds) for rounds in (QUICK, THOROUGH) for value in (half, whole)):
                return int(whole)
