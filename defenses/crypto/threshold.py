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

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from leakboard.core.randomness import Stream
from leakboard.defenses.crypto.integers import FixedBase, integer, inverse, power, random_below, random_bits, to_blob
from leakboard.defenses.crypto.primes import safe_prime
from leakboard.federation.payload import Value

LEAST_BITS = 128
CHALLENGE_BYTES = 16
HIDING_BITS = 128


class WrongShares(Exception):
    """Partial decryptions that cannot be combined: at least one was not made with the share that the dealer issued."""


@dataclass(frozen=True)
class PublicKey:
    """The public knowledge: enough to encrypt, add, combine and check, but not to decrypt. All plain `int`."""

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


def signed(public: PublicKey, plain: int) -> int:
    """The number of smallest size that is `plain` modulo n: values above n / 2 represent negative ones."""
    return plain - public.n if 2 * plain > public.n else plain


def partial(public: PublicKey, share: Share, ciphertexts: Sequence[int]) -> list[int]:
    """c^(2 Delta s_i) of each ciphertext."""
    exponent, square = integer(2 * public.delta * share.value), integer(public.square)
    return [int(power(ciphertext, exponent, square)) for ciphertext in ciphertexts]


def combine(public: PublicKey, partials: Mapping[int, Sequence[int]]) -> list[int]:
    """The plaintexts, in [0, n), from partial decryptions by index of the party; the first `threshold` are used.

    Raises `WrongShares` if c' is not 1 modulo n. That detects a foreign share, but not a partial decryption that was
    multiplied by (1 + n)^k, which only shifts the plaintext: `verify` detects those.
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


def prove(
    public: PublicKey, share: Share, ciphertexts: Sequence[int], partials: Sequence[int], stream: Stream
) -> dict[str, int]:
    """One proof that all partial decryptions were made with the share of v_i = v^(Delta s_i).

    The statement, for x = Delta s_i and the public index i: v_i = v^x, and partial_j^2 = c_j^(4x) for all j (`combine`
    reads only squares of partials). With e_j = 128 bits each of a hash of all of this, C = prod_j c_j^(4 e_j) and
    P = prod_j partial_j^(2 e_j), it suffices that log_C P = log_v v_i (the small exponents test of Bellare, Garay,
    Rabin, EUROCRYPT 1998). That is shown as in Damgård and Jurik (PKC 2001), after Shoup (EUROCRYPT 2000):
    a random r longer by 256 bits than x; challenge = hash(statement, v^r, C^r) of 128 bits; response = r + challenge x
    over the integers, because only the dealer knows the order.

    All values are in the cyclic group of squares modulo n^2, of order n p' q', whose prime factors are all large. Each
    hash that a cheating party tries succeeds with probability about 2^-128 plus one over the smallest of these factors,
    and the response hides x up to a statistical distance of about 2^-128.
    """
    statement, coefficients = _coefficients(public, share.index, ciphertexts, partials)
    square = public.square
    base = power(product_of_powers(ciphertexts, coefficients, square), 4, square)
    drawn = random_bits(stream, _response_bits(public) - 1)
    challenge = _challenge(public, statement, [power(public.v, drawn, square), power(base, drawn, square)])
    return {"challenge": challenge, "response": int(drawn + challenge * public.delta * share.value)}


def verify(
    public: PublicKey, index: int, ciphertexts: Sequence[int], partials: Sequence[int], proof: Mapping[str, int]
) -> bool:
    """Whether the proof of party `index` holds (see `prove`); numbers out of range are not a proof."""
    challenge, response = proof.get("challenge", -1), proof.get("response", -1)
    if not (1 <= index <= public.parties and len(ciphertexts) == len(partials)):
        return False
    if not (0 <= challenge < 1 << 8 * CHALLENGE_BYTES and 0 <= response < 1 << _response_bits(public)):
        return False
    if not _all_units(public, [*ciphertexts, *partials]):
        return False
    statement, coefficients = _coefficients(public, index, ciphertexts, partials)
    square = integer(public.square)
    base = power(product_of_powers(ciphertexts, coefficients, square), 4, square)
    image = power(product_of_powers(partials, coefficients, square), 2, square)
    commitments = [
        power(left, response, square) * power(right, -challenge, square) % square
        for left, right in ((public.v, public.verification[index - 1]), (base, image))
    ]
    return challenge == _challenge(public, statement, commitments)


def _response_bits(public: PublicKey) -> int:
    """Room for r + challenge x: x = Delta s_i < Delta n^2, and r is longer by the challenge and the hiding bits."""
    return public.delta.bit_length() + 2 * public.bits + 8 * CHALLENGE_BYTES + HIDING_BITS + 1


def _all_units(public: PublicKey, values: Sequence[int]) -> bool:
    """Whether all are invertible residues modulo n^2: only then are their squares in the group of the proof."""
    product, n = integer(1), integer(public.n)
    for value in values:
        product = product * value % n
    return all(0 < value < public.square for value in values) and math.gcd(int(product), public.n) == 1


def _coefficients(
    public: PublicKey, index: int, ciphertexts: Sequence[int], partials: Sequence[int]
) -> tuple[bytes, list[int]]:
    """The digest of the whole statement, and the e_j drawn from it, so that nobody can choose partials to fit them."""
    fixed = [public.n, public.v, public.verification[index - 1], index, len(ciphertexts)]
    blob = to_blob([*fixed, *ciphertexts, *partials], public.width)
    statement = hashlib.sha256(b"leakboard threshold statement" + blob).digest()
    size = CHALLENGE_BYTES
    drawn = hashlib.shake_256(b"leakboard threshold batch" + statement).digest(size * len(ciphertexts))
    return statement, [int.from_bytes(drawn[k : k + size], "little") for k in range(0, len(drawn), size)]


def _challenge(public: PublicKey, statement: bytes, commitments: Iterable[int]) -> int:
    """128 bits of the hash of statement and commitments; C and P follow from the statement."""
    blob = b"leakboard threshold challenge" + statement + to_blob(commitments, public.width)
    return int.from_bytes(hashlib.shake_256(blob).digest(CHALLENGE_BYTES), "little")


def product_of_powers(bases: Sequence[int], exponents: Sequence[int], modulus: int) -> int:
    """prod_j bases[j]^exponents[j] mod modulus, exponents not negative, by buckets (Pippenger 1976).

    It goes digit by digit from the top. Bases with equal digits are multiplied into one bucket, and the buckets B_1,
    B_2, ... give prod_d B_d^d as the product of all running products from the last bucket down.

    >>> int(product_of_powers([2, 3, 5], [5, 0, 2], 1009))
    800
    """
    window = max(1, len(bases).bit_length() - 3)
    mask, modulus = (1 << window) - 1, integer(modulus)
    longest = max((exponent.bit_length() for exponent in exponents), default=0)
    found = integer(1)
    for shift in reversed(range(0, longest, window)):
        buckets = [integer(1)] * (mask + 1)
        for base, exponent in zip(bases, exponents, strict=True):
            digit = exponent >> shift & mask
            buckets[digit] = buckets[digit] * base % modulus if digit else buckets[0]
        found, running = power(found, 1 << window, modulus), integer(1)
        for bucket in reversed(buckets[1:]):
            running = running * bucket % modulus
            found = found * running % modulus
    return found
