"""Threshold Paillier against textbook Paillier and the formulas of the paper, written here in plain Python."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.crypto.primes import safe_prime
from leakboard.defenses.crypto.threshold import (
    Encryptor,
    PublicKey,
    Share,
    WrongShares,
    add,
    combine,
    generate,
    lagrange,
    partial,
)
from leakboard.federation.payload import copy_value

BITS, PARTIES, THRESHOLD = 256, 5, 3
plaintexts = st.integers(0, 2 ** (BITS - 2) - 1)
few = settings(max_examples=25, deadline=None)


def stream(*names: str | int) -> Stream:
    return Stream(derive_key(bytes(32), "tests of threshold", *names))


@cache
def dealt(bits: int = BITS, parties: int = PARTIES, threshold: int = THRESHOLD) -> tuple[PublicKey, tuple[Share, ...]]:
    return generate(stream("key"), bits, parties, threshold)


@cache
def factors(bits: int = BITS) -> tuple[int, int]:
    """p and q of `dealt`, which draws them first: known to this test and to the dealer, to nobody else."""
    again = stream("key")
    return safe_prime(again, bits // 2), safe_prime(again, bits // 2)


@cache
def encryptor() -> Encryptor:
    return Encryptor(dealt()[0])


def ciphertexts_of(*plains: int) -> list[int]:
    draws = stream("encrypt")
    return [encryptor().encrypt(plain, draws) for plain in plains]


def partials_of(ciphertexts: Sequence[int], indices: Iterable[int]) -> dict[int, list[int]]:
    public, shares = dealt()
    return {index: partial(public, shares[index - 1], ciphertexts) for index in indices}


def textbook(p: int, q: int, ciphertext: int) -> int:
    """Paillier 1999: L(c^lambda) / L(g^lambda) mod n, lambda = lcm(p - 1, q - 1), g = 1 + n, L(u) = (u - 1) / n."""
    n, lam = p * q, math.lcm(p - 1, q - 1)
    over, under = ((pow(base, lam, n * n) - 1) // n for base in (ciphertext, 1 + n))
    return over * pow(under, -1, n) % n


def by_the_paper(public: PublicKey, partials: Mapping[int, int]) -> int:
    """Damgård, Jurik 2001: c' = prod c_i^(2 lambda_i), lambda_i = Delta prod -j / (i - j), x = L(c') / (4 Delta^2)."""
    delta, product = math.factorial(public.parties), 1
    for i, value in partials.items():
        others = [j for j in partials if j != i]
        over, under = delta * math.prod(-j for j in others), math.prod(i - j for j in others)
        assert over % under == 0
        product = product * pow(value, 2 * over // under, public.square) % public.square
    return (product - 1) // public.n * pow(4 * delta**2, -1, public.n) % public.n


# --- encryption ------------------------------------------------------------------------------


@few
@given(plaintexts)
def test_any_threshold_shares_decrypt_and_agree_with_the_textbook(plain: int) -> None:
    public, _ = dealt()
    ciphertexts = ciphertexts_of(plain)
    assert textbook(*factors(), ciphertexts[0]) == plain
    partials = partials_of(ciphertexts, range(1, PARTIES + 1))
    for chosen in combinations(partials, THRESHOLD):
        given_ = {index: partials[index] for index in chosen}
        assert combine(public, given_) == [plain]
        assert by_the_paper(public, {index: values[0] for index, values in given_.items()}) == plain
    assert combine(public, partials) == [plain]  # more than needed


@few
@given(st.lists(st.integers(0, 2 ** (BITS - 6)), min_size=1, max_size=10))
def test_sums(plains: list[int]) -> None:
    public, _ = dealt()
    total = add(public, ciphertexts_of(*plains))
    assert combine(public, partials_of([total], (1, 3, 5))) == [sum(plains)]


def test_nothing_adds_up_to_zero() -> None:
    public, _ = dealt()
    assert combine(public, partials_of([add(public, [])], (1, 2, 3))) == [0]


@few
@given(st.lists(st.integers(-(2 ** (BITS - 8)), 2 ** (BITS - 8)), min_size=1, max_size=5))
def test_signed_sums_by_an_offset_and_modulo_n(values: list[int]) -> None:
    public, _ = dealt()
    offset = 2 ** (BITS - 8)
    ciphertexts = ciphertexts_of(*(value + offset for value in values))
    [shifted] = combine(public, partials_of([add(public, ciphertexts)], (1, 2, 3)))
    assert shifted - len(values) * offset == sum(values)
    # (1 + n)^-offset takes an offset away under encryption: what is left is negative modulo n
    unshift = pow(1 + public.n, -offset * len(values), public.square)
    [residue] = combine(public, partials_of([add(public, [*ciphertexts, unshift])], (1, 2, 3)))
    assert 0 <= residue < public.n
    assert residue == sum(values) % public.n


def test_encryption_is_probabilistic() -> None:
    many = ciphertexts_of(*[7] * 200)
    assert len(set(many)) == 200
    assert all(textbook(*factors(), value) == 7 for value in many)


def test_encryption_depends_on_the_stream_alone() -> None:
    assert ciphertexts_of(1, 2) == ciphertexts_of(1, 2)
    assert encryptor().encrypt(1, stream("a")) != encryptor().encrypt(1, stream("b"))


@pytest.mark.parametrize("plain", [-1, 2 ** (BITS - 2), 2**BITS])
def test_plaintexts_that_do_not_fit_are_refused(plain: int) -> None:
    with pytest.raises(ValueError, match="plaintext"):
        encryptor().encrypt(plain, stream("refused"))


def test_the_largest_plaintext_fits() -> None:
    largest = 2 ** (BITS - 2) - 1
    assert combine(dealt()[0], partials_of(ciphertexts_of(largest), (2, 3, 4))) == [largest]


# --- too few, and wrong, shares ---------------------------------------------------------------


def test_too_few_shares_are_refused() -> None:
    public, _ = dealt()
    with pytest.raises(ValueError, match="3 of 5 parties"):
        combine(public, partials_of(ciphertexts_of(1), (1, 2)))
    with pytest.raises(ValueError, match="3 of 5 parties"):
        combine(public, {**partials_of(ciphertexts_of(1), (1, 2)), 6: [1]})
    with pytest.raises(ValueError, match="different lengths"):
        combine(public, {**partials_of(ciphertexts_of(1, 2), (1, 2)), 3: [1]})


def test_too_few_shares_do_not_decrypt_even_by_hand() -> None:
    public, _ = dealt()
    ciphertexts = ciphertexts_of(12345)
    pretended = dataclasses.replace(public, threshold=THRESHOLD - 1)
    for chosen in combinations(range(1, PARTIES + 1), THRESHOLD - 1):
        partials = partials_of(ciphertexts, chosen)
        assert by_the_paper(public, {index: values[0] for index, values in partials.items()}) != 12345
        with pytest.raises(WrongShares):
            combine(pretended, partials)


@few
@given(st.integers(1, PARTIES), st.integers(1, 2**BITS))
def test_a_foreign_share_is_noticed(index: int, off_by: int) -> None:
    public, shares = dealt()
    ciphertexts = ciphertexts_of(5)
    partials = partials_of(ciphertexts, range(1, PARTIES + 1))
    foreign = Share(index, shares[index - 1].value + off_by)
    partials[index] = partial(public, foreign, ciphertexts)
    chosen = [index, *(other for other in partials if other != index)][:THRESHOLD]
    with pytest.raises(WrongShares):
        combine(public, {i: partials[i] for i in chosen})


def test_a_partial_decryption_without_an_inverse_is_noticed() -> None:
    public, _ = dealt()
    partials = partials_of(ciphertexts_of(5), (1, 2, 3))
    for value in (0, public.n, factors()[0]):
        with pytest.raises(WrongShares):
            combine(public, {**partials, 2: [value]})


# --- keys ------------------------------------------------------------------------------------

TINY_P, TINY_Q = 23, 59  # 2 * 11 + 1, 2 * 29 + 1


def tiny() -> tuple[PublicKey, tuple[Share, ...]]:
    """n = 23 * 59, m = 11 * 29, d = 268 m = 63 n + 1, f(x) = d + 100000 x; two of three decrypt; y = 2, u = 3."""
    n = 1357
    shares = (Share(1, 185_492), Share(2, 285_492), Share(3, 385_492))
    verification = tuple(pow(9, 6 * share.value, n * n) for share in shares)
    return PublicKey(n, pow(n - 4, n, n * n), 3, 2, 9, verification), shares


@given(st.integers(0, 1356), st.integers(1, 1356).filter(lambda r: math.gcd(r, 1357) == 1))
def test_a_tiny_key_by_hand(plain: int, r: int) -> None:
    public, shares = tiny()
    ciphertext = (1 + plain * 1357) * pow(r, 1357, 1357**2) % 1357**2
    assert textbook(TINY_P, TINY_Q, ciphertext) == plain
    for chosen in combinations(shares, 2):
        by_hand = {share.index: [pow(ciphertext, 12 * share.value, 1357**2)] for share in chosen}
        assert {share.index: partial(public, share, [ciphertext]) for share in chosen} == by_hand
        assert combine(public, by_hand) == [plain]


def test_known_answers_of_the_tiny_key() -> None:
    """(1 + 42 n) 5^n = 1064413 and its power by 12 * 185492 modulo n^2 = 1841449, by plain Python's `pow` alone."""
    public, shares = tiny()
    assert (268 * 319, 63 * 1357 + 1) == (85_492, 85_492)
    assert partial(public, shares[0], [1_064_413]) == [1_364_941]
    assert combine(public, {share.index: partial(public, share, [1_064_413]) for share in shares}) == [42]


@pytest.mark.parametrize("bits", [*range(128, 168, 4), BITS])  # several: one number in four is a square by chance
def test_a_key_is_what_it_should_be(bits: int) -> None:
    public, shares = dealt(bits)
    p, q = factors(bits)
    assert public.n == p * q
    assert p != q
    assert (public.bits, public.width, public.plain_bits) == (bits, bits // 4, bits - 2)
    assert public.square == public.n**2
    assert [share.index for share in shares] == list(range(1, PARTIES + 1))
    m = (p // 2) * (q // 2)
    assert pow(public.v, public.n * m, public.square) == 1  # a square
    for prime in (p, q, p // 2, q // 2):
        assert pow(public.v, public.n * m // prime, public.square) != 1  # that generates all squares
    # h is an n-th power (an encryption of 0) whose order is 2m, the largest that there is among these
    assert textbook(p, q, public.h) == 0
    assert pow(public.h, 2 * m, public.square) == 1
    assert all(pow(public.h, 2 * m // prime, public.square) != 1 for prime in (2, p // 2, q // 2))
    mu, denominator = lagrange([2, 4, 5])
    d = sum(c * shares[i - 1].value for c, i in zip(mu, (2, 4, 5), strict=True)) * pow(denominator, -1, public.n * m)
    assert d % m == 0
    assert d % public.n == 1
    for share, checked in zip(shares, public.verification, strict=True):
        assert checked == pow(public.v, math.factorial(PARTIES) * share.value, public.square)


def test_a_key_depends_on_the_stream_alone_and_travels() -> None:
    public, shares = dealt()
    assert generate(stream("key"), BITS, PARTIES, THRESHOLD) == (public, shares)
    assert generate(stream("another"), BITS, PARTIES, THRESHOLD)[0].n != public.n
    assert PublicKey.from_payload(copy_value(public.to_payload())) == public


def gives_away(numbers: Sequence[int], n: int) -> bool:
    """Whether one of the numbers factors n at once: by a common factor of it or of a difference, or as an order."""
    pairs = [a - b for a, b in combinations([*numbers, 0, 1, -1], 2)]
    if any(1 < math.gcd(value, n) < n for value in pairs):
        return True
    exponents = [k * value for value in numbers for k in (1, 2, 4)]
    return any(pow(base, exponent, n) == 1 for exponent in exponents for base in (2, 3))


def test_the_public_key_gives_no_secret_away() -> None:
    public, _ = dealt()
    p, q = factors()
    m = (p // 2) * (q // 2)
    known = [public.n, public.h, public.v, *public.verification]
    assert set(public.to_payload()) == {"n", "h", "parties", "threshold", "v", "verification"}
    assert not gives_away(known, public.n)
    for secret in (p, q, m, 4 * m, m * pow(m, -1, public.n), p * 12345, public.n * m):
        assert gives_away([*known, secret], public.n)  # as a library does that keeps m in its public key


@pytest.mark.parametrize(
    ("bits", "parties", "threshold"),
    [(257, 5, 3), (126, 5, 3), (0, 5, 3), (256, 5, 6), (256, 5, 0), (256, 0, 0), (256, -1, -1), (128, 2**70, 2)],
)
def test_senseless_keys_are_refused(bits: int, parties: int, threshold: int) -> None:
    with pytest.raises(ValueError, match="given"):
        generate(stream("refused"), bits, parties, threshold)


@pytest.mark.parametrize(("bits", "parties", "threshold"), [(128, 1, 1), (128, 4, 1), (130, 3, 3), (192, 7, 4)])
def test_other_sizes(bits: int, parties: int, threshold: int) -> None:
    public, shares = generate(stream("sizes", bits), bits, parties, threshold)
    assert public.bits == bits
    ciphertext = Encryptor(public).encrypt(2**100, stream("sizes"))
    assert ciphertext < 1 << 8 * public.width
    chosen = shares[-threshold:]
    assert combine(public, {share.index: partial(public, share, [ciphertext]) for share in chosen}) == [2**100]


def works_from_end_to_end(bits: int, parties: int, threshold: int) -> None:
    """Each party encrypts, the last `threshold` decrypt the sum, and one fewer cannot."""
    public, shares = generate(stream("end to end"), bits, parties, threshold)
    assert public.bits == bits
    table, draws = Encryptor(public), stream("draws")
    plains = [2 ** (bits - 12) + party for party in range(parties)]
    total = [add(public, [table.encrypt(plain, draws) for plain in plains])]
    chosen = shares[-threshold:]
    partials = {share.index: partial(public, share, total) for share in chosen}
    assert combine(public, partials) == [sum(plains)]
    with pytest.raises(ValueError, match="parties must decrypt"):
        combine(public, dict(list(partials.items())[1:]))


def test_a_hundred_parties() -> None:
    works_from_end_to_end(256, 100, 51)


def test_2048_bits() -> None:
    works_from_end_to_end(2048, 5, 3)


@pytest.mark.slow
def test_2048_bits_and_a_hundred_parties() -> None:
    works_from_end_to_end(2048, 100, 51)


# --- building blocks --------------------------------------------------------------------------


@given(st.sets(st.integers(1, 40), min_size=1, max_size=12), st.data())
def test_lagrange_interpolates_with_integers(indices: set[int], data: st.DataObject) -> None:
    polynomial = data.draw(st.lists(st.integers(), min_size=1, max_size=len(indices)))
    mu, denominator = lagrange(sorted(indices))
    values = [sum(c * i**k for k, c in enumerate(polynomial)) for i in sorted(indices)]
    assert sum(m * value for m, value in zip(mu, values, strict=True)) == denominator * polynomial[0]
    assert math.factorial(40) % denominator == 0
    assert math.gcd(denominator, *mu) == 1
