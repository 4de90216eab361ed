"""Real numbers as small integers, many of them in one plaintext, so that sums never overflow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class FixedPoint:
    """Fixed point with `bits` bits for values in [-bound, bound]: q = round(x / step), step = bound / (2^(bits-1) - 1).

    `encode` adds the offset 2^(bits-1) - 1, so that codes are in [0, 2^bits - 2] and zero is exact. Values beyond the
    bound become the bound. Values that are not finite have no code: noise does not change them, so any code would
    reveal them.
    """

    bits: int
    bound: float

    @property
    def offset(self) -> int:
        """The code of zero."""
        return (1 << (self.bits - 1)) - 1

    @property
    def step(self) -> float:
        """The distance between two neighbouring values; the error of an encoded value is at most half of it."""
        return self.bound / self.offset

    def encode(self, values: Floats) -> Integers:
        """Codes of real values. Values that are not finite are refused: replace them before noise (`finite`)."""
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise ValueError(
                f"only finite values have codes, replace others before noise; given: {bad} non-finite values"
            )
        return np.rint(np.clip(values, -self.bound, self.bound) / self.step).astype(np.int64) + self.offset

    def decode(self, totals: Integers, count: int) -> Floats:
        """The sum of `count` values from the sum of their codes."""
        return np.asarray((totals - count * self.offset) * self.step, dtype=np.float64)

    def saturated(self, values: Floats) -> int:
        """How many values exceed the bound."""
        return int((np.abs(values) > self.bound).sum())


@dataclass(frozen=True)
class Packing:
    """Codes of `bits` bits in slots that are wide enough for the sum of `clients` of them.

    width = bits + ceil(log2 clients), slots = floor(plain_bits / width): the sum of `clients` codes, each at
    most 2^bits - 1, is below 2^width, so no slot ever carries into the next.
    """

    bits: int
    clients: int
    plain_bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 62 or self.slots < 1:
            raise ValueError(f"{self.bits}-bit codes of {self.clients} clients do not fit into {self.plain_bits} bits")
        assert self.clients * ((1 << self.bits) - 1) < 1 << self.width
        assert self.slots * self.width <= self.plain_bits

    @property
    def width(self) -> int:
        """Bits of a slot."""
        return self.bits + math.ceil(math.log2(self.clients)) if self.clients > 1 else self.bits

    @property
    def slots(self) -> int:
        """Codes per plaintext."""
        return self.plain_bits // self.width

    def plaintexts(self, count: int) -> int:
        """How many plaintexts this many codes need."""
        return -(-count // self.slots)

    def pack(self, codes: Integers) -> list[int]:
        """Plaintexts from codes, the first in the lowest bits; the last plaintext is padded with zeros."""
        if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >> self.bits):
            raise ValueError(f"codes must have at most {self.bits} bits")
        if not len(codes):
            return []
        rows = np.zeros((self.plaintexts(len(codes)), self.slots), dtype=np.uint64)
        rows.reshape(-1)[: len(codes)] = codes.astype(np.uint64)
        shifts = np.arange(self.width, dtype=np.uint64)
        bits = ((rows[:, :, None] >> shifts) & np.uint64(1)).astype(np.uint8).reshape(len(rows), -1)
        packed = np.packbits(bits, axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in packed]

    def unpack(self, plaintexts: Iterable[int], count: int) -> Integers:
        """The first `count` codes (or sums of codes) from plaintexts."""
        size = (self.slots * self.width + 7) // 8
        raw = b"".join(int(plain).to_bytes(size, "little") for plain in plaintexts)
        bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8).reshape(-1, size), axis=1, bitorder="little")
        slots = bits[:, : self.slots * self.width].reshape(-1, self.width).astype(np.int64)
        found: Integers = slots @ (np.int64(1) << np.arange(self.width, dtype=np.int64))
        return found[:count]
