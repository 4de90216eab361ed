"""Fixed point and packing: what is lost is at most half a step, and sums never leave their slot."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.defenses.crypto.fixed_point import FixedPoint, Packing

#: float64 has 53 bits: what dividing by the step and multiplying by it again may lose of the largest value
ROUNDING = 4 * 2.0**-53

codecs = st.builds(FixedPoint, bits=st.integers(2, 44), bound=st.floats(1e-6, 1e6))
shares = st.lists(st.floats(-1, 1), min_size=1, max_size=20)


@given(codecs, shares)
def test_a_value_comes_back_within_half_a_step(codec: FixedPoint, parts: list[float]) -> None:
    values = np.array(parts) * codec.bound
    found = codec.decode(codec.encode(values), 1)
    assert float(np.abs(found - values).max()) <= codec.step / 2 + ROUNDING * codec.bound


@given(codecs, st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_whatever_number_comes_in_a_code_stays_in_its_range(codec: FixedPoint, values: list[float]) -> None:
    codes = codec.encode(np.array(values))
    assert int(codes.min()) >= 0
    assert int(codes.max()) <= (1 << codec.bits) - 2


@given(codecs, st.integers(1, 100), st.integers(0, 2**32))
def test_the_sum_of_codes_decodes_to_the_exact_sum_of_the_rounded_values(
    codec: FixedPoint, clients: int, seed: int
) -> None:
    """Over rationals: the sum of what each code alone stands for; one rounding to float64 at the end."""
    values = np.random.default_rng(seed).uniform(-codec.bound, codec.bound, size=(clients, 3))
    codes = np.stack([codec.encode(row) for row in values])
    exact = [Fraction(codec.step) * sum(int(code) - codec.offset for code in column) for column in codes.T]
    found = codec.decode(codes.sum(0), clients)
    assert found.tolist() == [float(value) for value in exact]


@given(codecs)
def test_zero_and_the_ends_are_exact(codec: FixedPoint) -> None:
    ends = codec.encode(np.array([-codec.bound, 0.0, codec.bound]))
    assert ends.tolist() == [0, codec.offset, 2 * codec.offset]
    assert codec.decode(ends, 1) == pytest.approx([-codec.bound, 0.0, codec.bound])


@given(codecs, st.floats(1.001, 1e9))
def test_beyond_the_bound_is_the_bound_and_is_counted(codec: FixedPoint, factor: float) -> None:
    inside = [-codec.bound, codec.bound, 0.5 * codec.bound]
    outside = [factor * codec.bound, 1e300, -factor * codec.bound, -1e300]
    assert codec.encode(np.array(outside)).tolist() == [2 * codec.offset] * 2 + [0] * 2
    assert codec.saturated(np.array(inside + outside)) == len(outside)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_code(value: float) -> None:
    """Noise never touched it: any code, zero or the bound, would tell that it was there."""
    with pytest.raises(ValueError, match=r"only finite values have codes, .*; given: 1 non-finite values"):
        FixedPoint(16, 1.0).encode(np.array([value, 0.25]))


# --- packing --------------------------------------------------------------------------------


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    clients = draw(st.integers(1, 300))
    bits = draw(st.integers(1, 62 - (clients - 1).bit_length()))
    width = bits + (clients - 1).bit_length()
    return Packing(bits, clients, draw(st.integers(width, 8 * width + 5)))


@settings(max_examples=40)
@given(packings(), st.integers(1, 20), st.integers(0, 2**32))
def test_sums_of_plaintexts_unpack_to_sums_of_codes(packing: Packing, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << packing.bits, size=(packing.clients, count), dtype=np.int64)
    first, rest = packing.pack(codes[0]), codes[1:].sum(0)
    assert len(first) == packing.plaintexts(count)
    assert packing.unpack(first, count).tolist() == codes[0].tolist()
    total = [sum(column) for column in zip(*map(packing.pack, codes), strict=True)]
    assert packing.unpack(total, count).tolist() == (codes[0] + rest).tolist()


@given(packings(), st.data())
def test_all_clients_at_the_largest_code_carry_nothing_into_a_neighbour(packing: Packing, data: st.DataObject) -> None:
    """The worst case of the bound: every client sends 2^bits - 1, in all slots or in every other one."""
    largest, count = (1 << packing.bits) - 1, 2 * packing.slots + 1
    full = np.array([largest if data.draw(st.booleans()) else 0 for _ in range(count)], dtype=np.int64)
    for codes in (np.full(count, largest, dtype=np.int64), full):
        total = [packing.clients * plain for plain in packing.pack(codes)]
        assert packing.unpack(total, count).tolist() == (packing.clients * codes).tolist()
        assert all(plain < 1 << packing.plain_bits for plain in total)


@given(packings())
def test_a_plaintext_is_used_up(packing: Packing) -> None:
    assert packing.slots * packing.width <= packing.plain_bits < (packing.slots + 1) * packing.width


@pytest.mark.parametrize(
    ("bits", "clients", "plain_bits"),
    [(24, 5, 26), (24, 2, 24), (40, 1, 39), (62, 2, 2046), (63, 1, 2046), (44, 2**19, 2046)],
)
def test_what_does_not_fit_is_refused(bits: int, clients: int, plain_bits: int) -> None:
    with pytest.raises(ValueError, match=f"{bits}-bit codes of {clients} clients do not fit into {plain_bits} bits"):
        Packing(bits, clients, plain_bits)


@pytest.mark.parametrize("wrong", [-1, 16])
def test_only_codes_of_the_right_size_are_packed(wrong: int) -> None:
    packing = Packing(4, 3, 64)
    with pytest.raises(ValueError, match="codes must have at most 4 bits"):
        packing.pack(np.array([0, wrong, 3], dtype=np.int64))


@pytest.mark.parametrize(("bits", "clients", "slots"), [(16, 5, 107), (16, 100, 88), (24, 5, 75), (24, 100, 66)])
def test_slots_of_a_2048_bit_key(bits: int, clients: int, slots: int) -> None:
    """The table of docs/decisions.md, 2.4, was made by a prototype: floor(2046 / (bits + ceil(log2 K)))."""
    assert Packing(bits, clients, 2046).slots == slots
