"""A random rotation that spreads a vector evenly over its coordinates: random signs, then Walsh and Hadamard."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.linalg import hadamard

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.crypto.fixed_point import Floats

#: the transform is made of matrices of at most this size: fewer and larger steps than butterflies
BLOCK = 256


def padded_size(count: int) -> int:
    """The next power of two.

    >>> padded_size(5), padded_size(8)
    (8, 8)
    """
    return 1 << max(0, count - 1).bit_length()


def rotate(values: Floats, label: str) -> Floats:
    """H D x / sqrt(d), with x (n,) padded by zeros to d = 2^p, and D the signs of this label.

    The signs are public: privacy does not rest on them. They make large coordinates unlikely for any x.
    """
    padded = np.zeros(padded_size(len(values)))
    padded[: len(values)] = values
    return walsh_hadamard(padded * _signs(label, len(padded)))


def unrotate(values: Floats, label: str, count: int) -> Floats:
    """The inverse of `rotate`: D H y / sqrt(d), the first `count` values."""
    return (walsh_hadamard(values) * _signs(label, len(values)))[:count]


def walsh_hadamard(values: Floats) -> Floats:
    """H x / sqrt(d) for d = 2^p values; it is its own inverse.

    H_d is the Kronecker product of smaller ones. Each step multiplies the last axis of the remaining product and moves
    it to the front, so that after all of them every axis is back in its place.

    >>> walsh_hadamard(np.array([1.0, 0.0, 0.0, 0.0]))
    array([0.5, 0.5, 0.5, 0.5])
    """
    found, left = values, len(values)
    while left > 1:
        block = min(left, BLOCK)
        found = (found.reshape(-1, block) @ _matrix(block)).T.reshape(-1)
        left //= block
    return np.asarray(found, dtype=np.float64)


@lru_cache(maxsize=16)
def _matrix(size: int) -> Floats:
    return np.asarray(hadamard(size) / np.sqrt(size), dtype=np.float64)


def _signs(label: str, count: int) -> Floats:
    """Signs that everybody derives from the label of a round."""
    bits = np.unpackbits(
        np.frombuffer(Stream(derive_key(bytes(32), "rotation", label)).bytes(-(-count // 8)), np.uint8)
    )
    return np.asarray(1.0 - 2.0 * bits[:count], dtype=np.float64)
