"""Seeds that derive from names, so that adding a plugin changes no other plugin's numbers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TypeAlias

Name: TypeAlias = str | int | float | bool | None


def digest_of(*parts: object) -> str:
    """SHA-256 (hex) of any JSON-able parts, in a canonical form.

    >>> digest_of("a", 1) == digest_of("a", 1) != digest_of("a", "1")
    True
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def derive_seed(*names: Name) -> int:
    """A 63-bit seed from names and numbers. It is one-way, but a base that can be guessed (0) can be tried.

    So what an attack must not guess also includes something that it does not have (`Job.private_seed`).

    >>> derive_seed(0, "attack", "prior") == derive_seed(0, "attack", "prior")
    True
    """
    return int(digest_of("seed", *names)[:16], 16) >> 1


def natural_order(names: Iterable[str]) -> list[str]:
    """Names sorted as people count: `resnet8` before `resnet20`.

    >>> natural_order(["resnet20", "mlp", "resnet8"])
    ['mlp', 'resnet8', 'resnet20']
    """

    def key(name: str) -> tuple[list[tuple[int, int, str]], str]:
        parts = re.split(r"(\d+)", name)
        # `a1` and `a01` count as equal: the name itself decides, never the order of the input
        return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts], name

    return sorted(names, key=key)
