"""Threshold Paillier: Damgård and Jurik, PKC 2001 (s = 1), with the short exponents of Damgård, Jurik, Nielsen 2010.

A trusted dealer draws safe primes p = 2p' + 1 and q = 2q' + 1, n = pq, m = p'q', and d with d = 0 mod m, d = 1 mod n;
party i of K gets s_i = f(i), f a random polynomial over Z_{nm} of degree threshold - 1 with f(0) = d; Delta = K!.

    encrypt    c = (1 + n)^x h^a mod n^2,  h = (-y^2)^n,  a of half of the modulus' bits
    add        c = prod_j c_j                           (plaintexts add modulo n)
    partial    c_i = c^(2 Delta s_i)
    combine    c' = prod_i c_i^(2 mu_i) = (1 + n)^(4 Delta D x),  x = ((c' - 1) / n) (4 Delta D)^-1 mod n

with mu_i = D prod_{j != i} j / (j - i) and D the smallest number that makes all of these integers. D divides Delta.
D = Delta gives the formula of the paper; the smallest D gives the same x with far shorter exponents.

Short exponents are as safe as full ones if h^a cannot be distinguished from a random power of h (Damgård, Jurik,
Nielsen, "A generalization of Paillier's public-key system with applications to electronic voting", 2010).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from leakboard.core.randomness import Stream
from leakboard.defenses.crypto.integers import FixedBase, integer, inverse, power, random_below, random_bits
from leakboard.defenses.crypto.primes import safe_prime
from leakboard.federation.payload import Value

LEAST_BITS = 128


class WrongShares(Exception):
    """Partial decryptions that cannot be combined: at least one was not made with the share that the dealer issued."""


@dataclass(frozen=True)
class PublicKey:
    """The public knowledge: enough to encrypt, add and combine, but not to decrypt. All plain `int`."""

    n: int  # the modulus, product of two safe primes
    h: int  # (-y^2)^n mod n^2, the base of the randomness
    parties: int
    threshold: int  # how many shares are needed to decrypt
    v: int  # a random square modulo n^2: with overwhelming probability it generates all squares
    verification: tuple[int, ...]  # v_i = v^(Delta s_i) mod n^2 of party i, at index i - 1

    @property
    def bits(self) -> int:
        """Size of the modulus."""
        return self.n.bit_length()

    @cached_property
    def square(self) -> int:
        """n^2, the modulus of ciphertexts."""
        return self.n * self.n

    @property
    def width(self) -> int:
        """Bytes of a ciphertext or of a partial decryption."""
        return (2 * self.bits + 7) // 8

    @property
    def plain_bits(self) -> int:
        """Bits of a plaintext that is certainly below n; sums must stay below 2^plain_bits too."""
        return self.bits - 2

    @cached_property
    def delta(self) -> int:
        """Delta = parties!."""
        return math.factorial(self.parties)

    def to_payload(self) -> dict[str, Value]:
        """The key as the content of a message."""
        return {
            "n": self.n,
            "h": self.h,
            "parties": self.parties,
            "threshold": self.threshold,
            "v": self.v,
            "verification": list(self.verification),
        }

    @staticmethod
    def from_payload(payload: Mapping[str, Value]) -> PublicKey:
        """The inverse of `to_payload`."""
        numbers = {name: int(payload[name]) for name in ("n", "h", "parties", "threshold", "v")}
        return PublicKey(**numbers, verification=tuple(int(value) for value in payload["verification"]))


@dataclass(frozen=True)
class Share:
    """The secret of one party: s_i = f(i)."""

    index: int  # from 1
    value: int


def generate(stream: Stream, bits: int, parties: int, threshold: int) -> tuple[PublicKey, tuple[Share, ...]]:
    """The trusted dealer: a public key of `bits` bits and one share per party, all from the stream."""
    if bits % 2 or bits < LEAST_BITS:
        raise ValueError(f"a modulus must have an even number of bits, at least {LEAST_BITS}; given: {bits}")
    if not 1 <= threshold <= parties or parties.bit_length() >= bits // 2 - 1:
        raise ValueError(f"1 <= threshold <= parties < p' must hold; given: threshold {threshold}, parties {parties}")
    p = q = safe_prime(stream, bits // 2)
    while q == p:
        q = safe_prime(stream, bits // 2)
    n, m = p * q, (p // 2) * (q // 2)
    order = integer(n * m)  # of the squares modulo n^2; n and m are coprime because p' and q' are shorter than p and q
    polynomial = [m * inverse(m, n)] + [random_below(stream, order) for _ in range(threshold - 1)]
    shares = tuple(Share(i, _evaluate(polynomial, i, order)) for i in range(1, parties + 1))

    square, delta = n * n, math.factorial(parties)
    y, u = _unit(stream, n), _unit(stream, n * n)
    v = u * u % square
    public = PublicKey(
        n=n,
        h=int(power(-y * y % n, n, square)),
        parties=parties,
        threshold=threshold,
        v=v,
        verification=tuple(int(power(v, delta * share.value, square)) for share in shares),
    )
    return public, shares


def _unit(stream: Stream, modulus: int) -> int:
    """A uniform invertible residue."""
    while True:
        drawn = int(random_below(stream, modulus))
        if math.gcd(drawn, modulus) == 1:
            return drawn


def _evaluate(polynomial: Sequence[int], at: int, modulus: int) -> int:
    """sum_k polynomial[k] at^k mod modulus (Horner)."""
    found = integer(0)
    for coefficient in reversed(polynomial):
        found = (found * at + coefficient) % modulus
    return int(found)


class Encryptor:
    """Encrypts under one key; holds the table of the powers of h, which takes as long as about 200 encryptions."""

    def __init__(self, public: PublicKey) -> None:
        self.public = public
        self._exponent_bits = public.bits // 2
        self._masks = FixedBase(public.h, public.square, self._exponent_bits)
        self._n, self._square = integer(public.n), integer(public.square)

    def encrypt(self, plain: int, stream: Stream) -> int:
        """(1 + plain n) h^a mod n^2 = (1 + n)^plain h^a, with a fresh a, for 0 <= plain < 2^plain_bits."""
        if not 0 <= plain < 1 << self.public.plain_bits:
            raise ValueError(f"a plaintext must not be negative and must have at most {self.public.plain_bits} bits")
        mask = self._masks.power(random_bits(stream, self._exponent_bits))
        return int((1 + plain * self._n) * mask % self._square)


def add(public: PublicKey, ciphertexts: Iterable[int]) -> int:
    """A ciphertext of the sum modulo n: the product. It is not randomised again."""
    found, square = integer(1), integer(public.square)
    for ciphertext in ciphertexts:
        found = found * ciphertext % square
    return int(found)


def partial(public: PublicKey, share: Share, ciphertexts: Sequence[int]) -> list[int]:
    """c^(2 Delta s_i) of each ciphertext."""
    exponent, square = integer(2 * public.delta * share.value), integer(public.square)
    return [int(power(ciphertext, exponent, square)) for ciphertext in ciphertexts]


def combine(public: PublicKey, partials: Mapping[int, Sequence[int]]) -> list[int]:
    """The plaintexts, in [0, n), from partial decryptions by index of the party; the first `threshold` are used.

    Raises `WrongShares` if c' is not 1 modulo n. That detects a foreign share, but not a partial decryption that was
    multiplied by (1 + n)^k, which only shifts the plaintext: only a proof of correct decryption would detect that.
    """
    if len(partials) < public.threshold or not all(1 <= index <= public.parties for index in partials):
        raise ValueError(f"{public.threshold} of {public.parties} parties must decrypt; given: {sorted(partials)}")
    used = sorted(partials)[: public.threshold]
    if len({len(partials[index]) for index in used}) > 1:
        raise ValueError("all parties must decrypt the same ciphertexts; given: lists of different lengths")
    coefficients, denominator = lagrange(used)
    scale = inverse(4 * public.delta * denominator, public.n)
    n, square = integer(public.n), integer(public.square)
    plains = []
    for column in zip(*(partials[index] for index in used), strict=True):
        over, under = integer(1), integer(1)
        for value, coefficient in zip(column, coefficients, strict=True):
            factor = power(value, 2 * abs(coefficient), square)
            if coefficient > 0:
                over = over * factor % square
            else:
                under = under * factor % square
        if math.gcd(int(under), public.n) != 1 or (over - under) % n:
            raise WrongShares(f"the partial decryptions of parties {used} do not fit together")
        found = over * inverse(under, square) % square
        plains.append(int((found - 1) // n * scale % n))
    return plains


def lagrange(indices: Sequence[int]) -> tuple[list[int], int]:
    """(mu, D) with sum_i mu_i f(i) = D f(0) for every polynomial of degree below len(indices), mu integers, D minimal.

    >>> lagrange([1, 2, 3]), lagrange([1, 3])
    (([3, -3, 1], 1), ([3, -1], 2))
    """
    rational = [math.prod((Fraction(j, j - i) for j in indices if j != i), start=Fraction(1)) for i in indices]
    denominator = math.lcm(*(value.denominator for value in rational))
    return [int(value * denominator) for value in rational], denominator
