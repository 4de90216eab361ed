"""Discrete logarithms of known small size, by baby steps and giant steps (Shanks 1971)."""

from __future__ import annotations

from functools import lru_cache

from leakboard.defenses.crypto.integers import integer, inverse, power

# The table is keyed by remainders of group elements, not by the elements: 32 bytes instead of 300. Neither the low bits
# of an element nor Python's hash (the remainder by 2^61 - 1) would do: many powers of 2 look alike under them.
KEY_MODULUS = 2**60 - 93  # prime


class NotInRange(ValueError):
    """The value has no logarithm within the bound."""


def default_table_bits(bound: int) -> int:
    """A table of a quarter of the bound, but between 2^16 (built in 0.1 s) and 2^20 entries (110 MB)."""
    return min(max(bound.bit_length() - 3, 16), 20)


class DiscreteLog:
    """x from g^x mod p, for all |x| <= bound.

    The table holds g^i for |i| <= h. x = k (2h + 1) + i for one such i, so multiplying g^x by g^-(2h + 1), k times,
    leads into the table. The steps start at 0 and go in both directions, so small |x| are found first. The bound must
    be below half of the order of g, otherwise x is not unique.
    """

    def __init__(self, g: int, p: int, bound: int, table_bits: int | None = None) -> None:
        if bound < 0:
            raise ValueError(f"the bound must not be negative; given: {bound}")
        bits = default_table_bits(bound) if table_bits is None else table_bits
        half = min(bound, 1 << bits >> 1)
        self.bound = bound
        self._g, self._p = integer(g), integer(p)
        self._width = 2 * half + 1
        self._turns = -(-(bound - half) // self._width)
        self._up = power(g, self._width, p)
        self._down = inverse(self._up, p)
        self._table = self._baby_steps(half)

    def _baby_steps(self, half: int) -> dict[int, int]:
        g, p = self._g, self._p
        table: dict[int, int] = {}
        element = power(g, -half, p)
        for i in range(-half, half + 1):
            table[int(element % KEY_MODULUS)] = i
            element = element * g % p
        if len(table) < 2 * half + 1:
            raise ValueError("two entries of the table are equal: the order of g is too small for this bound")
        return table

    def solve(self, value: int) -> int:
        """x with g^x = value and |x| <= bound; raises `NotInRange` if there is none."""
        p, table = self._p, self._table
        lowered = raised = value = integer(value) % p
        for turn in range(self._turns + 1):
            for k, element in ((turn, lowered), (-turn, raised)):
                i = table.get(int(element % KEY_MODULUS))
                if i is not None:
                    x = k * self._width + i
                    if abs(x) <= self.bound and power(self._g, x, p) == value:  # remainders may collide
                        return x
            lowered, raised = lowered * self._down % p, raised * self._up % p
        raise NotInRange(f"no logarithm between -{self.bound} and {self.bound}")


@lru_cache(maxsize=4)
def discrete_log_of(g: int, p: int, bound: int) -> DiscreteLog:
    """The solver for (g, p, bound), built once per process; the last four are cached."""
    return DiscreteLog(g, p, bound)
