"""Large integers by GMP, behind typed functions, and powers of a fixed base.

gmpy2 has no type stubs. Its `mpz` behaves like an `int`, and the types here say `int`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import gmpy2

from leakboard.core.randomness import Stream


def integer(value: int) -> int:
    """The same number as a GMP integer, so that GMP computes its products and remainders."""
    return cast(int, gmpy2.mpz(value))


def power(base: int, exponent: int, modulus: int) -> int:
    """base^exponent mod modulus; a negative exponent takes the inverse."""
    return cast(int, gmpy2.powmod(base, exponent, modulus))


def inverse(value: int, modulus: int) -> int:
    """The inverse modulo `modulus`; raises ZeroDivisionError if there is none."""
    return cast(int, gmpy2.invert(value, modulus))


def is_prime(value: int, rounds: int = 25) -> bool:
    """Miller-Rabin with this many rounds (and trial division); wrong with probability below 4^-rounds."""
    return bool(gmpy2.is_prime(value, rounds))


def random_bits(stream: Stream, bits: int) -> int:
    """A uniform integer in [0, 2^bits)."""
    size = (bits + 7) // 8
    return integer(int.from_bytes(stream.bytes(size), "little") >> (8 * size - bits))


def random_below(stream: Stream, bound: int) -> int:
    """A uniform integer in [0, bound), by rejection."""
    bits = bound.bit_length()
    while True:
        drawn = random_bits(stream, bits)
        if drawn < bound:
            return drawn


def to_blob(values: Iterable[int], width: int) -> bytes:
    """Non-negative integers concatenated, little-endian, `width` bytes each.

    >>> to_blob([1, 258], 2)
    b'\\x01\\x00\\x02\\x01'
    """
    return b"".join(int(value).to_bytes(width, "little") for value in values)


def from_blob(blob: bytes, width: int) -> list[int]:
    """The inverse of `to_blob`."""
    return [integer(int.from_bytes(blob[i : i + width], "little")) for i in range(0, len(blob), width)]


class FixedBase:
    """Powers of one base, from a table of its powers: base^e = prod_i table[i][e_i], e in digits of `window` bits.

    Costs ceil(bits / window) products instead of `bits` squarings; the table has that many rows of 2^window
    entries (Brickell et al. 1992).
    """

    def __init__(self, base: int, modulus: int, bits: int, window: int = 8) -> None:
        self.modulus = integer(modulus)
        self.bits, self.window = bits, window
        self._mask = (1 << window) - 1
        self._rows: list[list[int]] = []
        start = integer(base) % self.modulus
        for _ in range(-(-bits // window)):
            row = [integer(1)]
            for _ in range(self._mask):
                row.append(row[-1] * start % self.modulus)
            self._rows.append(row)
            start = row[-1] * start % self.modulus

    def power(self, exponent: int) -> int:
        """base^exponent for 0 <= exponent < 2^bits."""
        if not 0 <= exponent < 1 << self.bits:
            raise ValueError(f"an exponent must not be negative and must have at most {self.bits} bits")
        found, modulus, mask, window = integer(1), self.modulus, self._mask, self.window
        rest = int(exponent)
        for row in self._rows:
            digit = rest & mask
            if digit:
                found = found * row[digit] % modulus
            rest >>= window
        return found
