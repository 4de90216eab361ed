"""Functional encryption: it gives the inner product, and without labels far more than that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.crypto.discrete_log import NotInRange
from leakboard.defenses.crypto.functional import (
    EXPONENT_BITS,
    MODP_2048,
    Decryptor,
    FunctionalKey,
    Group,
    PowerProduct,
    SlotEncryptor,
    SlotKey,
    functional_key,
    pads,
    powers_of_g,
    slot_key,
)
from leakboard.defenses.crypto.integers import is_prime

SMALL = Group(p=2**128 - 15449, q=(2**128 - 15449) // 2, g=4)  # large enough that chance plays no part
TINY = Group(p=23, q=11, g=4)
BOUND = 10_000
Ciphertexts = Mapping[int, Sequence[tuple[int, int]]]


def stream(*names: str | int) -> Stream:
    return Stream(derive_key(bytes(32), "tests of functional encryption", *names))


def keys_of(clients: int, family: str = "keys") -> dict[int, SlotKey]:
    return {slot: slot_key(stream(family, slot)) for slot in range(clients)}


def encrypted(
    keys: Mapping[int, SlotKey],
    data: Mapping[int, Sequence[int]],
    label: str | None,
    group: Group = SMALL,
    randomness: str = "randomness",
) -> dict[int, list[tuple[int, int]]]:
    return {
        slot: SlotEncryptor(keys[slot], group).encrypt(
            values, pads(keys[slot], label, len(values)), stream(randomness, slot, str(label))
        )
        for slot, values in data.items()
    }


def weighted(data: Mapping[int, Sequence[int]], weights: Mapping[int, int]) -> list[int]:
    columns = zip(*(data[slot] for slot in weights), strict=True)
    return [sum(y * x for y, x in zip(weights.values(), column, strict=True)) for column in columns]


# --- the groups -----------------------------------------------------------------------------


def floor_of_pi_times_2_to_the(bits: int) -> int:
    """By Machin's formula, pi = 16 arctan(1/5) - 4 arctan(1/239), in integers with 64 bits to spare."""
    one = 1 << bits + 64

    def arctan_of_one_over(x: int) -> int:
        total, term, k = 0, one // x, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term, k = term // x**2, k + 1
        return total

    return (16 * arctan_of_one_over(5) - 4 * arctan_of_one_over(239)) >> 64


def test_the_group_is_that_of_rfc_3526() -> None:
    p = 2**2048 - 2**1984 - 1 + 2**64 * (floor_of_pi_times_2_to_the(1918) + 124476)
    assert p == MODP_2048.p


@pytest.mark.parametrize("group", [MODP_2048, SMALL, TINY])
def test_groups_have_prime_order(group: Group) -> None:
    assert group.p == 2 * group.q + 1
    assert is_prime(group.p)
    assert is_prime(group.q)
    assert group.g != 1
    assert pow(group.g, group.q, group.p) == 1


# --- correctness ----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_key_gives_the_inner_product(data: st.DataObject) -> None:
    clients, count = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 4))
    label = data.draw(st.sampled_from([None, "round 1", "round 2 probe 0"]))
    numbers = st.integers(-50, 50)
    values = {i: data.draw(st.lists(numbers, min_size=count, max_size=count)) for i in range(clients)}
    weights = {i: data.draw(st.integers(-30, 30)) for i in range(clients)}
    keys = keys_of(clients)
    key = functional_key(keys, weights, label, count)
    found = Decryptor(BOUND, SMALL).decrypt(key, encrypted(keys, values, label))
    assert found == weighted(values, weights)


@pytest.mark.parametrize("label", [None, "round 3"])
def test_at_2048_bits(label: str | None) -> None:
    keys = keys_of(3)
    values = {0: [0, 1, -700, 2**15], 1: [0, -2, 699, 2**15], 2: [0, 500, 3, -(2**15)]}
    weights = {0: 1, 1: -3, 2: 5}
    found = Decryptor(2**18).decrypt(functional_key(keys, weights, label, 4), encrypted(keys, values, label, MODP_2048))
    assert found == weighted(values, weights)


def test_weights_as_large_as_samples_of_a_shard() -> None:
    keys, values, weights = keys_of(2), {0: [3, -1], 1: [-2, 1]}, {0: 60_000, 1: 59_999}
    key = functional_key(keys, weights, "r", 2)
    assert Decryptor(2**18, SMALL).decrypt(key, encrypted(keys, values, "r")) == weighted(values, weights)


def test_a_known_answer_in_a_tiny_group() -> None:
    """Ciphertexts, key and decryption by plain `pow` modulo 23: w = 3, 7; u = 5, 6; x = 2, -1; y = 1, -2."""
    keys = {0: SlotKey(3, bytes(32)), 1: SlotKey(7, bytes(32))}
    values, padding, weights = {0: 2, 1: -1}, {0: 5, 1: 6}, {0: 1, 1: -2}
    ciphertexts = {}
    for slot, key in keys.items():
        r = int.from_bytes(stream("tiny", slot).bytes(32), "little")
        by_hand = (pow(4, r, 23), pow(4, values[slot] + padding[slot], 23) * pow(pow(4, key.w, 23), r, 23) % 23)
        ciphertexts[slot] = SlotEncryptor(key, TINY).encrypt([values[slot]], [padding[slot]], stream("tiny", slot))
        assert ciphertexts[slot] == [by_hand]
    (t0, c0), (t1, c1) = ciphertexts[0][0], ciphertexts[1][0]
    functional = FunctionalKey({0: 3, 1: -14}, (5 - 12,), weights)
    opened = c0 * pow(int(c1), -2, 23) * pow(int(t0), -3, 23) * pow(int(t1), 14, 23) * pow(4, 7, 23) % 23
    assert opened == pow(4, 2 * 1 + (-1) * (-2), 23)
    assert Decryptor(5, TINY).decrypt(functional, ciphertexts) == [4]


def test_the_parts_of_a_functional_key() -> None:
    keys, weights = keys_of(3), {0: 2, 2: -5}
    for label in (None, "round 1"):
        key = functional_key(keys, weights, label, 3)
        assert key.weights == weights
        assert key.d == {0: 2 * keys[0].w, 2: -5 * keys[2].w}
        first, third = pads(keys[0], label, 3), pads(keys[2], label, 3)
        assert key.z == tuple(2 * u - 5 * v for u, v in zip(first, third, strict=True))


def test_clients_of_weight_zero_may_be_absent() -> None:
    keys, values = keys_of(3), {0: [4, 5], 2: [6, -8]}
    key = functional_key(keys, {0: 1, 1: 0, 2: 1}, "round 1", 2)
    ciphertexts = encrypted(keys, values, "round 1")
    assert Decryptor(BOUND, SMALL).decrypt(key, ciphertexts) == [10, -3]
    nobody = functional_key(keys, {0: 0, 1: 0, 2: 0}, "round 1", 2)
    assert Decryptor(BOUND, SMALL).decrypt(nobody, {}) == [0, 0]


def test_sums_beyond_the_bound_are_refused() -> None:
    keys, decryptor = keys_of(2), Decryptor(100, SMALL)
    key = functional_key(keys, {0: 1, 1: 1}, "round 1", 1)
    for total, first in ((100, 50), (-100, -50)):
        assert decryptor.decrypt(key, encrypted(keys, {0: [first], 1: [first]}, "round 1")) == [total]
        beyond = first + (1 if first > 0 else -1)
        with pytest.raises(NotInRange):
            decryptor.decrypt(key, encrypted(keys, {0: [first], 1: [beyond]}, "round 1"))


def test_refusals() -> None:
    keys = keys_of(2)
    key = functional_key(keys, {0: 1, 1: 1}, "round 1", 2)
    ciphertexts = encrypted(keys, {0: [1, 2], 1: [3, 4]}, "round 1")
    with pytest.raises(ValueError, match="slot 1 needs 2 ciphertexts; given: 0"):
        Decryptor(BOUND, SMALL).decrypt(key, {0: ciphertexts[0]})
    with pytest.raises(ValueError, match="slot 0 needs 2 ciphertexts; given: 1"):
        Decryptor(BOUND, SMALL).decrypt(key, {**ciphertexts, 0: ciphertexts[0][:1]})
    with pytest.raises(ValueError, match="too small for the bound"):
        Decryptor(6, TINY)
    with pytest.raises(ValueError, match="zip"):
        SlotEncryptor(keys[0], SMALL).encrypt([1, 2], [3], stream("r"))


@settings(max_examples=60, deadline=None)
@given(terms=st.lists(st.tuples(st.integers(1, SMALL.p - 1), st.integers(-(2**300), 2**300)), max_size=5))
def test_products_of_powers(terms: list[tuple[int, int]]) -> None:
    expected = 1
    for base, exponent in terms:
        expected = expected * pow(base, exponent, SMALL.p) % SMALL.p
    assert PowerProduct([e for _, e in terms], SMALL.p).of([b for b, _ in terms]) == expected


def test_one_table_serves_all_clients() -> None:
    assert powers_of_g(SMALL) is powers_of_g(Group(SMALL.p, SMALL.q, SMALL.g))


# --- keys, pads and randomness --------------------------------------------------------------


def test_keys_come_from_the_stream() -> None:
    assert slot_key(stream("a")) == slot_key(stream("a"))
    one, other = slot_key(stream("a")), slot_key(stream("b"))
    assert one.w != other.w
    assert one.seed != other.seed
    assert len(one.seed) == 32
    assert 0 <= one.w < 2**EXPONENT_BITS


def test_pads_without_a_label_are_all_one_number() -> None:
    key = slot_key(stream("pads"))
    assert len(set(pads(key, None, 10))) == 1
    assert pads(key, None, 10)[:3] == pads(key, None, 3)
    assert pads(slot_key(stream("other")), None, 1) != pads(key, None, 1)


def test_pads_under_labels_never_repeat() -> None:
    key, other = slot_key(stream("pads")), slot_key(stream("other"))
    drawn = pads(key, "1", 100) + pads(key, "2", 100) + pads(other, "1", 100) + pads(key, None, 1) + pads(key, "", 1)
    assert len(set(drawn)) == 302
    assert pads(key, "1", 100) == drawn[:100]
    assert all(0 <= u < 2**EXPONENT_BITS for u in drawn)
    # All 256 bits are in use: a bit that is the same in all 302 has probability 256 * 2^-301.
    for bit in range(EXPONENT_BITS):
        assert len({u >> bit & 1 for u in drawn}) == 2


def test_encryption_is_probabilistic() -> None:
    """The same value under the same pad, 50 times: all of t and all of c differ; the stream alone decides."""
    encryptor = SlotEncryptor(slot_key(stream("k")), SMALL)
    ciphertexts = encryptor.encrypt([7] * 50, [11] * 50, stream("r"))
    assert len({t for t, _ in ciphertexts}) == 50
    assert len({c for _, c in ciphertexts}) == 50
    assert encryptor.encrypt([7] * 50, [11] * 50, stream("r")) == ciphertexts
    assert encryptor.encrypt([7] * 50, [11] * 50, stream("s")) != ciphertexts


# --- what the key gives ---------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_under_a_label_the_key_tells_the_inner_product_alone(data: st.DataObject) -> None:
    """Any two data sets of one inner product: the pads u + x - x' explain the same view by the other data.

    Ciphertexts, d and z are the same to the last bit. Pads of 256 bits move by a few units, which is out of
    their range with probability below 2^-240: this is what "nothing else" rests on, and it needs a pad for
    each coordinate.
    """
    weights = {0: data.draw(st.integers(-9, 9)), 1: data.draw(st.integers(-9, 9)), 2: 1}
    numbers = st.lists(st.integers(-50, 50), min_size=3, max_size=3)
    true = {slot: data.draw(numbers) for slot in weights}
    other = {0: data.draw(numbers), 1: data.draw(numbers)}
    partial = weighted({**other, 2: [0, 0, 0]}, weights)
    other[2] = [total - part for total, part in zip(weighted(true, weights), partial, strict=True)]
    assert weighted(other, weights) == weighted(true, weights)

    keys = keys_of(3)
    moved = {
        slot: [u + x - y for u, x, y in zip(pads(key, "r", 3), true[slot], other[slot], strict=True)]
        for slot, key in keys.items()
    }
    for slot, key in keys.items():
        encryptor = SlotEncryptor(key, SMALL)
        seen = encryptor.encrypt(true[slot], pads(key, "r", 3), stream("view", slot))
        assert encryptor.encrypt(other[slot], moved[slot], stream("view", slot)) == seen
    assert functional_key(keys, weights, "r", 3).z == tuple(weighted(moved, weights))


def unmasked(key: FunctionalKey, ciphertexts: Ciphertexts, slot: int) -> list[int]:
    """What the server gets from one client alone when its weight is 1: c / t^d = g^(x + u)."""
    return [int(c) * pow(int(t), -key.d[slot], SMALL.p) % SMALL.p for t, c in ciphertexts[slot]]


def test_one_clients_elements_repeat_without_labels_and_never_with_them() -> None:
    """A client that sends 5 in each of 20 coordinates of two rounds: the server sees that all are equal, or nothing."""
    keys, values, weights = keys_of(2), {0: [5] * 20, 1: list(range(20))}, {0: 1, 1: 1}
    static: set[int] = set()
    fresh: set[int] = set()
    for turn in ("round 1", "round 2"):
        for label, seen in ((None, static), (turn, fresh)):
            ciphertexts = encrypted(keys, values, label, randomness=turn)
            seen.update(unmasked(functional_key(keys, weights, label, 20), ciphertexts, 0))
    assert len(static) == 1
    assert len(fresh) == 40


@pytest.mark.parametrize("wrong", ["weights", "clients", "label", "order"])
def test_a_key_that_does_not_fit_opens_nothing(wrong: str) -> None:
    keys, values = keys_of(3), {0: [1, 2], 1: [3, 4], 2: [5, 6]}
    ciphertexts = encrypted(keys, values, "round 1")
    ones = dict.fromkeys(keys, 1)
    right = functional_key(keys, ones, "round 1", 2)
    assert Decryptor(BOUND, SMALL).decrypt(right, ciphertexts) == [9, 12]
    key = {
        "weights": FunctionalKey(right.d, right.z, {**ones, 0: 2}),  # a server that wants another sum than it got
        "clients": functional_key(keys_of(3, "strangers"), ones, "round 1", 2),
        "label": functional_key(keys, ones, "round 2", 2),
        "order": FunctionalKey(right.d, right.z[::-1], right.weights),
    }[wrong]
    with pytest.raises(NotInRange):
        Decryptor(BOUND, SMALL).decrypt(key, ciphertexts)


def mixed(ciphertexts: Ciphertexts, j: int) -> dict[int, list[tuple[int, int]]]:
    """Client 0's ciphertext j beside the others' ciphertext 0."""
    return {slot: [column[j if slot == 0 else 0]] for slot, column in ciphertexts.items()}


def test_mix_and_match_works_without_labels() -> None:
    """With the one key for the sum of all, the server reads client 0's whole update up to a constant."""
    keys, values = keys_of(3), {0: [12, -7, 0, 40, 3, 3], 1: [5, 6, 7, 8, 9, 1], 2: [-9, 4, 4, 4, 1, 2]}
    key = functional_key(keys, dict.fromkeys(keys, 1), None, 1)
    ciphertexts, decryptor = encrypted(keys, values, None), Decryptor(BOUND, SMALL)
    opened = [decryptor.decrypt(key, mixed(ciphertexts, j))[0] for j in range(6)]
    assert [total - opened[0] for total in opened] == [x - values[0][0] for x in values[0]]
    # Across rounds as well: the next round's update of client 0 beside the others' of this one.
    later = SlotEncryptor(keys[0], SMALL).encrypt([77], pads(keys[0], None, 1), stream("next round"))
    across = decryptor.decrypt(key, {**mixed(ciphertexts, 0), 0: later})[0]
    assert across - opened[0] == 77 - values[0][0]


def test_mix_and_match_fails_with_labels() -> None:
    keys, values = keys_of(3), {0: [12, -7, 0], 1: [5, 6, 7], 2: [-9, 4, 4]}
    key = functional_key(keys, dict.fromkeys(keys, 1), "round 1", 3)
    ciphertexts, decryptor = encrypted(keys, values, "round 1"), Decryptor(BOUND, SMALL)
    assert decryptor.decrypt(key, ciphertexts) == [8, 3, 11]
    for z in key.z:
        single = FunctionalKey(key.d, (z,), key.weights)
        for j in (1, 2):
            with pytest.raises(NotInRange):
                decryptor.decrypt(single, mixed(ciphertexts, j))
    later = SlotEncryptor(keys[0], SMALL).encrypt([12], pads(keys[0], "round 2", 1), stream("next round"))
    with pytest.raises(NotInRange):
        decryptor.decrypt(FunctionalKey(key.d, key.z[:1], key.weights), {**mixed(ciphertexts, 0), 0: later})
