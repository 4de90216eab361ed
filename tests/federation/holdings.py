"""What objects hold, counted along their references: the same number on every machine, whatever it is busy with."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from leakboard.core.registry import PACKAGE

#: what has no references of interest; each counts where it is referred to, since Python shares small ones
ATOMS = (int, float, complex, bool, type(None), types.CodeType, types.BuiltinFunctionType)


class Held(NamedTuple):
    """References between objects plus letters and bytes in texts, and the bytes of all tensors, shared storage once."""

    entries: int
    tensor_bytes: int


def tensor_bytes(found: Iterable[torch.Tensor]) -> int:
    """The bytes of these tensors; shared storage once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values())


def held_by(*roots: object) -> Held:
    """What can be reached from these objects and from our own modules and classes (their globals and caches)."""
    gc.collect()
    waiting: list[Any] = [*roots, *(module for name, module in sorted(sys.modules.items()) if _ours(name))]
    met = {id(thing): thing for thing in waiting}  # kept here: an id is its object's as long as that lives
    entries = 0
    while waiting:
        thing = waiting.pop()
        for part in _referents(thing):
            entries += 1 + (len(part) if isinstance(part, str | bytes | bytearray) else 0)
            if id(part) not in met and not isinstance(part, (*ATOMS, str, bytes, bytearray)):
                met[id(part)] = part
                waiting.append(part)
    return Held(entries, tensor_bytes(thing for thing in met.values() if isinstance(thing, torch.Tensor)))


def _ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def _referents(thing: Any) -> list[Any]:
    """What an object refers to; of a function not the whole module, of others' modules and classes nothing."""
    if isinstance(thing, types.ModuleType):
        return list(vars(thing).values()) if _ours(thing.__name__) else []
    if isinstance(thing, type):
        return list(vars(thing).values()) if _ours(thing.__module__) else []
    if isinstance(thing, types.FunctionType):
        return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
    return gc.get_referents(thing)
