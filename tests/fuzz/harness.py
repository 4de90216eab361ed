"""What every fuzz test demands for bad input: a valid result or one sentence, in time, and nothing written.

`LEAKBOARD_FUZZ_EXAMPLES=2000 python -m tests.fuzz` runs more examples. The seeds are fixed, so the same number gives
the same examples.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from leakboard.core.alarms import alarm
from leakboard.core.errors import UserError
from leakboard.core.registry import ROOT
from leakboard.leaderboard.cli.parser import LONGEST_SENTENCE, complaint

Result = TypeVar("Result")
#: the number of examples, and of refused examples, by target
RAN: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()
#: limit of CPU seconds per example; not of wall seconds, because others may use the machine
TIME_LIMIT = 30.0


def examples(few: int, slower: int = 1) -> settings:
    """The settings of a fuzz test: a few examples by default, or as many as asked for, divided by `slower`."""
    asked = int(os.environ.get("LEAKBOARD_FUZZ_EXAMPLES", "0"))
    return settings(
        max_examples=max(few, asked // slower),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class Endless(BaseException):
    """An example exceeded its time. This is no `Exception`, so that no handler swallows it."""


def time_limit(seconds: float = TIME_LIMIT) -> AbstractContextManager[None]:
    """Raise `Endless` in the block after this many CPU seconds of this process."""
    return alarm(seconds, Endless(f"more than {seconds} CPU seconds"), cpu=True)


_written: list[str] | None = None
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "shutil.rmtree")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _written is None:
        return
    if event == "open" and isinstance(arguments[0], str | bytes) and (arguments[2] or 0) & _WRITING:
        _written.append(os.path.realpath(os.fsdecode(arguments[0])))
    elif event in _CHANGES:
        _written.extend(os.path.realpath(os.fsdecode(a)) for a in arguments[:2] if isinstance(a, str | bytes))


_hooked = False


@contextmanager
def writes_only_in(*folders: Path) -> Iterator[None]:
    """Fail if the block writes, creates or removes anything outside these folders."""
    global _written, _hooked
    if not _hooked:  # an audit hook cannot be removed
        sys.addaudithook(_audit)
        _hooked = True
    _written = []
    try:
        yield
    finally:
        written, _written = _written, None
    allowed = [str(folder.resolve()) for folder in folders] + [str(ROOT / ".cache"), "/dev/null"]
    # files that Python and matplotlib write at import do not count
    written = [path for path in written if not {"__pycache__", "matplotlib"} & set(Path(path).parts)]
    stray = [p for p in written if not any(p == a or p.startswith(a + "/") for a in allowed)]
    assert not stray, f"written outside: {stray[:3]}"


def survives(target: str, action: Callable[[], Result], *folders: Path) -> Result | None:
    """The result of the action, or None if it refuses in one sentence. Anything else fails the test."""
    RAN[target] += 1
    try:
        with time_limit(), writes_only_in(*folders):
            return action()
    except UserError as error:
        REFUSED[target] += 1
        is_sentence(str(error))
        return None


def is_sentence(message: str) -> None:
    """The form of every refusal, as the command line prints it."""
    assert message.rstrip().endswith((".", "…")), message[-200:]
    shown = complaint(message)
    assert shown.isprintable()
    assert len(shown) <= LONGEST_SENTENCE + 40
    assert "Traceback" not in shown


# --- what bad input is made of ------------------------------------------------------------------

#: values that programs stumble over, all of them JSON's own
NASTY: tuple[Any, ...] = (
    *(None, True, False, "", " ", "x", "nan", "inf", "-1", "0", "1e400", "../../up", "/etc/passwd", "~", ".", ".."),
    *("\x00", "a\nb", "\x1b[31mred", "\u202eright", "𝕏" * 3, "é", "🙂", "x" * 300, "x" * 5000, "{{7*7}}"),
    *("<script>alert(1)</script>", "$(touch x)", "`touch x`", "%n%s", "=1+1", "!!python/object:os.system"),
    *("\\input{x}", "npz:/dev/zero", "a:b:c"),
    *(0, 1, -1, 2, 3, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**40, 10**400),
    *(0.0, -0.0, 0.5, 1.5, -0.5, 1e-320, 1e-9, 1e9, 1e149, 1e200, 1e308, -1e308),
    *([], {}, [[]], [None], [1], ["x"], [{}], {"": 0}, {"x": {}}, {"a": [1, {"b": None}]}, [0] * 50, [[[[[[]]]]]]),
)
nasty = st.sampled_from(NASTY).map(lambda value: _copy(value))  # a copy, because the next change may alter it
leaf = st.one_of(
    nasty,
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.booleans(),
    st.none(),
)
tree = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def mutated(draw: Callable[[st.SearchStrategy[Any]], Any], whole: Any, most: int = 3) -> Any:
    """A copy of a JSON tree with some changes: values replaced, removed, doubled, renamed or added."""
    whole = _copy(whole)
    for _ in range(draw(st.integers(1, most))):
        found = list(places(whole))
        if not found:
            return draw(tree)
        box, key = found[draw(st.integers(0, len(found) - 1))]
        _change(draw, box, key)
    return whole


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a tree: container and key. In a long list only the first few."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(min(len(value), 6)):
            yield value, key
            yield from places(value[key])


def _change(draw: Callable[[st.SearchStrategy[Any]], Any], box: Any, key: Any) -> None:
    how = draw(st.sampled_from(("nasty", "tree", "remove", "near", "add", "rename")))
    old = _copy(box[key])
    if how == "near" and isinstance(old, int | float) and not isinstance(old, bool):
        box[key] = draw(st.sampled_from((old + 1, old - 1, -old, old * 2, old * 10**6, float(old), str(old), [old])))
    elif how == "near" and isinstance(old, str):
        box[key] = draw(
            st.sampled_from((old + "x", old[:-1], old.upper(), old * 50, "../" + old, old + "\n", "/" + old))
        )
    elif how == "near" and isinstance(old, list) and old:
        box[key] = draw(st.sampled_from((old[1:], old + old[-1:], old[::-1], [], old * 20)))
    elif how == "remove":
        del box[key]
    elif how == "add" and isinstance(box, dict):
        box[draw(st.sampled_from(("extra", "", "name", "params", "path", "../x", "\n")))] = draw(tree)
    elif how == "add":
        box.insert(key, draw(tree))
    elif how == "rename" and isinstance(box, dict):
        box[draw(st.sampled_from((f"{key}x", str(key).upper(), "")))] = box.pop(key)
    else:
        box[key] = draw(nasty if how == "nasty" else tree)


def broken_bytes(draw: Callable[[st.SearchStrategy[Any]], Any], content: bytes) -> bytes:
    """Bytes with some changes: bytes replaced, pieces cut, doubled or inserted, or the end missing."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(("change", "cut", "double", "insert", "end")))
        if how == "change" and data:
            data[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif how == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=16))
        elif how == "end":
            del data[at:]
    return bytes(data)


# --- files that are damaged for a while ---------------------------------------------------------


@contextmanager
def replaced(contents: Mapping[Path, bytes]) -> Iterator[None]:
    """Files with other contents in this block."""
    whole = {path: path.read_bytes() for path in contents}
    for path, content in contents.items():
        path.write_bytes(content)
    try:
        yield
    finally:
        for path, content in whole.items():
            path.write_bytes(content)


def lying_header(draw: Callable[[st.SearchStrategy[Any]], Any], tensors: bytes) -> bytes:
    """A safetensors file whose header, or the length of it, is not what its tensors are."""
    (length,) = struct.unpack("<Q", tensors[:8])
    header = json.dumps(mutated(draw, json.loads(tensors[8 : 8 + length]))).encode()
    said = draw(st.sampled_from((len(header), len(header) + 1, 0, 2**40, 2**63)))
    return struct.pack("<Q", said) + header + tensors[8 + length :]
