"""A value in a folder: `about.json`, `value.json` and `value.safetensors`, checked when they are read. No pickle.

Tensors are stored under the digest of their contents, and `about.json` holds the digest of `value.json`. So a file that
was cut off or changed by accident is refused. Whoever writes all three files can write any value, but nothing else:
names, sizes and forms are checked before a tensor is read, and no more memory is taken than the files have bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.federation.payload import Packer, Value, content_name, raw_bytes, unpack

FORMAT = 1
ABOUT, TREE, TENSORS = "about.json", "value.json", "value.safetensors"
#: bytes of `about.json`, and by default of the other two files together
MOST_ABOUT, MOST_BYTES = 2**16, 2**34
#: values nest at most this deep: models are 2 to 4 deep
DEEPEST = 64
_INTEGER = re.compile(r"-?0x[0-9a-f]+")


class Damaged(UserError):
    """Stored files that cannot be used; the message is one sentence that says why."""


def save_value(folder: Path, value: Value, about: Mapping[str, str | int]) -> None:
    """Write a value into an existing folder, and what is said about it."""
    packer = Packer()
    text = json.dumps(packer.pack(value), allow_nan=False, separators=(",", ":"))
    save_file(packer.tensors, str(folder / TENSORS))
    (folder / TREE).write_text(text)
    said = {"format": FORMAT, "sha256": hashlib.sha256(text.encode()).hexdigest(), **about}
    (folder / ABOUT).write_text(json.dumps(said, indent=1))


def read_about(folder: Path) -> dict[str, str | int]:
    """What is said about a stored value: texts and whole numbers by name."""
    found = _json(_content(folder / ABOUT, MOST_ABOUT))
    if not isinstance(found, dict) or not all(type(value) in (str, int) for value in found.values()):
        raise Damaged(f"{ABOUT} must hold texts and whole numbers by name.")
    if found.get("format") != FORMAT:
        raise Damaged(f"{ABOUT} must say format {FORMAT}; given: {found.get('format')!r:.40}.")
    return found


def load_value(folder: Path, most: int = MOST_BYTES) -> Value:
    """The stored value. Equal tensors are one object, so a caller that changes them must copy them first.

    `most` bounds the bytes of the files, and so the memory that is taken.
    """
    about, content = read_about(folder), _content(folder / TREE, most)
    if hashlib.sha256(content).hexdigest() != about.get("sha256"):
        raise Damaged(f"{TREE} has another digest than {ABOUT} says.")
    tree = _json(content)
    try:
        size = (folder / TENSORS).stat().st_size
        if size > most - len(content):
            raise Damaged(f"{TENSORS} has {size} bytes; allowed are {most - len(content)}.")
        with safe_open(str(folder / TENSORS), framework="pt") as file:  # this checks the header against the size
            return _filled(tree, file)
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise Damaged(f"{TENSORS} cannot be read: {_short(error)}.") from None


def _filled(tree: Any, file: Any) -> Value:
    """The value of a tree. Each tensor is read once, and its digest must be its name."""
    shapes = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    sizes = {name: (part.get_dtype(), math.prod(part.get_shape())) for name, part in shapes.items()}
    _check(tree, sizes, 0)
    read: dict[str, Tensor] = {}
    blobs: dict[str, bytes] = {}

    def data(name: str) -> bytes:
        if name not in blobs:
            blobs[name] = raw_bytes(tensor(name))
        return blobs[name]

    def tensor(name: str) -> Tensor:
        if name not in read:
            read[name] = file.get_tensor(name).clone()  # not a view of the file, which may change
            if content_name(read[name]) != name:
                raise Damaged(f"{TENSORS} holds a tensor that does not have the digest {name:.40}.")
        return read[name]

    return unpack(tree, tensor, data)


def _check(tree: Any, sizes: Mapping[str, tuple[str, int]], depth: int) -> None:
    """Refuse a tree that `unpack` does not know, or that names tensors that are not there."""
    if depth > DEEPEST:
        _refuse(f"nests more than {DEEPEST} deep")
    if isinstance(tree, list):
        for item in tree:
            _check(item, sizes, depth + 1)
    elif isinstance(tree, dict):
        _check_node(tree, sizes, depth)


def _check_node(tree: dict[str, Any], sizes: Mapping[str, tuple[str, int]], depth: int) -> None:
    match tree:
        case {"$dict": dict(items), **rest} if not rest:
            for item in items.values():
                _check(item, sizes, depth + 1)
        case {"$tensor": str(name), **rest} if not rest and name in sizes:
            pass
        case {"$bytes": str(name), "n": int(count), **rest} if not rest and name in sizes:
            dtype, length = sizes[name]
            if dtype != "U8" or type(count) is not int or length != max(1, count) or count < 0:
                _refuse("holds bytes of a wrong length")
        case {"$int": str(digits), **rest} if not rest and _INTEGER.fullmatch(digits):
            pass
        case {"$float": "nan" | "inf" | "-inf", **rest} if not rest:
            pass
        case _:
            _refuse("holds an entry of no known form, or names a tensor that is not there")


def _refuse(why: str) -> NoReturn:
    raise Damaged(f"{TREE} {why}.")


def _content(path: Path, most: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > most:
            raise Damaged(f"{path.name} has {size} bytes; allowed are {most}.")
        with path.open("rb") as file:
            content = file.read(size + 1)  # not `most`: a read allocates what it asks for
        if len(content) > size:
            raise Damaged(f"{path.name} has more bytes than the {size} that it had before it was read.")
        return content
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}.") from None


def _json(content: bytes) -> Any:
    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(content, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"It is not JSON: {_short(error)}.") from None


def _short(error: Exception) -> str:
    return f"{' '.join(str(error).split())[:120]}" or type(error).__name__
