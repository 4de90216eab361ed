"""What a message or a state may hold: tensors, bytes and plain values in dicts and lists. Nothing executable.

All of it can be copied, measured, written to disk (JSON and safetensors) and read back unchanged, without pickle.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

# Recursive: Tensor | bytes | str | int | float | bool | None | list[Value] | dict[str, Value]
Value: TypeAlias = Any
Payload: TypeAlias = dict[str, Value]
Parameters: TypeAlias = dict[str, Tensor]
_SCALARS = (str, int, float, bool, type(None))


def copy_value(value: Value) -> Value:
    """A deep copy that shares no memory; refuses anything that is not a `Value`."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Mapping):
        return {_text_key(key): copy_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy_value(item) for item in value]
    raise TypeError(f"a message or state may hold tensors, bytes, text and numbers; given: {type(value).__name__}")


def _text_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"keys of a message or state must be text; given: {key!r}")
    return key


def leaves(value: Value, path: str = "") -> Iterator[tuple[str, Value]]:
    """Every leaf with its path, depth first."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}")
    else:
        yield path, value


def size_in_bytes(value: Value) -> int:
    """Bytes on the wire: tensors and byte strings by their own size, integers by their length, floats 8, text UTF-8.

    >>> size_in_bytes({"g": torch.zeros(3), "n": 300, "c": b"abc"})
    17
    """
    return sum(_leaf_size(leaf) for _, leaf in leaves(value))


def _leaf_size(leaf: Value) -> int:
    if isinstance(leaf, Tensor):
        return leaf.numel() * leaf.element_size()
    if isinstance(leaf, bytes):
        return len(leaf)
    if isinstance(leaf, str):
        return len(leaf.encode())
    if isinstance(leaf, bool) or leaf is None:
        return 1
    if isinstance(leaf, int):
        return max(1, (leaf.bit_length() + 7) // 8)
    return 8


def raw_bytes(tensor: Tensor) -> bytes:
    """The tensor's values as bytes, in row-major order."""
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


class Packer:
    """Turns values into JSON trees and collects their tensors; equal tensors are stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._named: dict[int, tuple[Tensor, str]] = {}  # a broadcast is one object: its digest is computed once

    def pack(self, value: Value) -> Any:
        """The JSON tree of a value; tensors and bytes become references by content."""
        if isinstance(value, Tensor):
            if id(value) not in self._named:
                self._named[id(value)] = value, self._keep(value.detach().cpu().contiguous())
            return {"$tensor": self._named[id(value)][1]}
        if isinstance(value, bytes):
            return {
                "$bytes": self._keep(torch.frombuffer(bytearray(value or b"\0"), dtype=torch.uint8)),
                "n": len(value),
            }
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": str(float(value))}
        if isinstance(value, bool) or value is None or isinstance(value, str | float):
            return value
        if isinstance(value, int):
            return value if abs(value) < 2**53 else {"$int": hex(value)}
        if isinstance(value, Mapping):
            return {"$dict": {key: self.pack(item) for key, item in value.items()}}
        return [self.pack(item) for item in value]

    def _keep(self, tensor: Tensor) -> str:
        name = content_name(tensor)
        self.tensors.setdefault(name, tensor)
        return name


def content_name(tensor: Tensor) -> str:
    """The name under which a tensor is stored: a digest of its type, shape and values."""
    header = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return hashlib.blake2b(header + raw_bytes(tensor), digest_size=16).hexdigest()


def unpack(tree: Any, tensor: Callable[[str], Tensor], data: Callable[[str], bytes] | None = None) -> Value:
    """The inverse of `Packer.pack`; `tensor` reads one tensor by name (only those that are reached).

    `data` reads the bytes of one tensor by name; by default those of `tensor`.
    """
    if isinstance(tree, list):
        return [unpack(item, tensor, data) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$tensor" in tree:
        return tensor(tree["$tensor"])
    if "$bytes" in tree:
        found = raw_bytes(tensor(tree["$bytes"])) if data is None else data(tree["$bytes"])
        return found[: tree["n"]]
    if "$int" in tree:
        return int(tree["$int"], 16)
    if "$float" in tree:
        return float(tree["$float"])
    return {key: unpack(item, tensor, data) for key, item in tree["$dict"].items()}
