"""A stand-in for ciphertexts if a run is too long to encrypt everything (`crypto: sampled`).

It is a one-time pad in the ring of 64-bit integers: sealed = code + pad mod 2^64. Without the key one sees uniform
numbers; sums of sealed codes are sums of codes plus sums of pads; with the key one reads everything. So a view holds
what it would hold of real ciphertexts, at a millionth of the price. (With one pad for all codes, as in hybridalpha
with `keys: shared`, the differences of sealed codes are visible: exactly what one functional key reveals there.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakboard.core.randomness import Stream, derive_key
from leakboard.federation.party import RoundContext

Words = NDArray[np.uint64]


def where(context: RoundContext) -> str:
    """A text that identifies one run of the protocol; pads and labels are bound to it."""
    return f"{context.kind}/{context.round}/{'' if context.probe is None else context.probe}"


def client_key(master: bytes, client: int) -> bytes:
    """The key with which a client seals its codes."""
    return derive_key(master, "sealing", client)


def pad(key: bytes, label: str | None, count: int) -> Words:
    """The pad of a client's codes: fresh numbers for a label; without one, a single number for all codes and rounds."""
    if label is None:
        return np.repeat(Stream(derive_key(key, "static")).words(1), count)
    return Stream(derive_key(key, "pad", label)).words(count)


def pad_sum(keys: Sequence[bytes], label: str | None, count: int) -> Words:
    """The sum of several clients' pads mod 2^64."""
    total = np.zeros(count, dtype=np.uint64)
    for key in keys:
        total += pad(key, label, count)
    return total


def to_tensor(words: Words) -> Tensor:
    """64-bit words as a tensor (signed, bit for bit)."""
    return torch.from_numpy(words.view(np.int64).copy())


def to_words(tensor: Tensor) -> Words:
    """The inverse of `to_tensor`."""
    found: Words = tensor.numpy().view(np.uint64)
    return found
