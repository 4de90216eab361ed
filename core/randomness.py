"""Keyed random streams: ChaCha20 under keys that derive one way from the run's secret.

Every draw of every party comes from `Stream(derive_key(party_secret, purpose, ...))`. Anyone with a party's secret can
repeat all its draws (a view contains the secrets of its parties). Nobody can derive another party's secret or the run's
secret from it.
"""

from __future__ import annotations

import secrets
from functools import cached_property

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from scipy.special import ndtri

KEY_BYTES = 32


def derive_key(secret: bytes, *names: str | int) -> bytes:
    """32 bytes from a secret and names: HKDF-SHA256 (RFC 5869), the names length-prefixed in `info`."""
    parts = [str(name).encode() for name in names]
    info = b"leakboard" + b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def run_secret(seed: int | None) -> bytes:
    """The secret of a run: from its seed (`keys: seeded`), or from the system when None (`keys: fresh`)."""
    if seed is None:
        return secrets.token_bytes(KEY_BYTES)
    return derive_key(seed.to_bytes(16, "little", signed=True), "run")


class Stream:
    """A ChaCha20 key stream (RFC 8439), read as bytes, integers, uniforms or normals. Never rewinds."""

    def __init__(self, key: bytes, nonce: bytes = bytes(16)) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a stream key must have {KEY_BYTES} bytes; given: {len(key)}")
        self._cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None)

    @cached_property
    def _context(self) -> CipherContext:
        return self._cipher.encryptor()

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes."""
        return self._context.update(bytes(count))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` uniform 64-bit words."""
        return np.frombuffer(self.bytes(8 * count), dtype="<u8")

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Uniform on the open interval (0, 1), 52 bits: (u + 1/2) / 2^52 (with 53, the largest would round to 1)."""
        words = self.words(int(np.prod(shape, dtype=np.int64)))
        return (((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Standard normal by the inverse distribution function of `uniform`."""
        drawn: NDArray[np.float64] = ndtri(self.uniform(*shape))
        return drawn

    def permutation(self, count: int) -> NDArray[np.int64]:
        """A uniform permutation of range(count): the order of `count` random words."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def generator(self) -> torch.Generator:
        """A torch generator seeded from the stream, for draws that need no cryptographic strength."""
        return torch.Generator().manual_seed(int(self.words(1)[0]) >> 1)
