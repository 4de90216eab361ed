"""npz files: damaged, crooked, lying about their size, holding Python objects."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakboard.datasets.base import ImagePool
from leakboard.datasets.loading import load_pool
from leakboard.datasets.npz import Npz
from tests.fuzz.harness import broken_bytes, examples, survives

NAMES = ("images", "labels", "train_images", "train_labels", "test_images", "test_labels", "groups", "class_names")
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 16), dtype=np.uint8)
LABELS = np.arange(12) % 3
dtypes = st.sampled_from(
    (
        "u1",
        "i1",
        "<u2",
        ">i4",
        "<i8",
        "<u8",
        "<f2",
        ">f4",
        "<f8",
        "<f16",
        "<c8",
        "?",
        "<U3",
        "<U0",
        "S3",
        "S0",
        "V4",
        "V0",
        "<M8[s]",
        "<m8[D]",
    )
)
sizes = st.sampled_from((0, 1, 2, 3, 12, 16, 32, 2**16, 2**31, 2**40, 2**63 - 1, 2**63, 10**30))
#: what a header may say in place of a data type
DESCRIPTIONS = (
    "'|O'",
    "'|u1'",
    "[('a', '|u1')]",
    "[('a', '|O')]",
    "('<f8', (3,))",
    "'<U1000000000'",
    "'x'",
    "None",
    "1",
    "'|u1' * 9999",
)


def pool(path: Path) -> ImagePool:
    return load_pool(Npz(path=str(path)))


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path / "mine.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path / "mine.npz"


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def header(description: str, shape: str, order: str = "False") -> bytes:
    text = f"{{'descr': {description}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@examples(25)
@given(content=st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"PK\x03\x04" + rest))
def test_random_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.npz").write_bytes(content)
    assert survives("npz: random bytes", lambda: pool(tmp_path / "mine.npz"), tmp_path) is None


@examples(150)
@given(data=st.data())
def test_a_good_file_with_bytes_changed(tmp_path: Path, data: st.DataObject) -> None:
    good = archive(tmp_path, {"images.npy": npy(PIXELS), "labels.npy": npy(LABELS)}).read_bytes()
    (tmp_path / "mine.npz").write_bytes(broken_bytes(data.draw, good))
    found = survives("npz: damaged", lambda: pool(tmp_path / "mine.npz"), tmp_path)
    assert found is None or found.pixels.squeeze(1).numpy().tobytes() == PIXELS.tobytes()


@examples(40)
@given(
    arrays=st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(
            dtypes, st.lists(st.sampled_from((0, 1, 3, 12, 16)), max_size=4), st.sampled_from((0, 1, 2, 300, -1))
        ),
        min_size=1,
    )
)
def test_arrays_of_any_type_and_shape(tmp_path: Path, arrays: dict[str, tuple[str, list[int], int]]) -> None:
    made = {f"{n}.npy": npy(np.full(shape, fill).astype(kind)) for n, (kind, shape, fill) in arrays.items()}
    whole = {"images.npy": npy(PIXELS), "labels.npy": npy(LABELS), **made} if "labels" not in arrays else made
    survives("npz: types and shapes", lambda: pool(archive(tmp_path, whole)), tmp_path)


@examples(40)
@given(
    name=st.sampled_from(NAMES),
    description=st.sampled_from(DESCRIPTIONS) | dtypes.map(repr),
    shape=st.lists(sizes, max_size=4).map(lambda found: str(tuple(found)))
    | st.sampled_from(("()", "3", "None", "(-1,)", "[1]", "((1,),)", "(True,)", "(1.5,)")),
    rest=st.binary(max_size=64),
)
def test_headers_that_lie(tmp_path: Path, name: str, description: str, shape: str, rest: bytes) -> None:
    members = {"images.npy": npy(PIXELS), "labels.npy": npy(LABELS), f"{name}.npy": header(description, shape) + rest}
    survives("npz: lying headers", lambda: pool(archive(tmp_path, members)), tmp_path)


class Evil:
    """Unpickling this makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@examples(10)
@given(name=st.sampled_from(NAMES), how=st.sampled_from(("object array", "bare pickle", "no .npy", "structured")))
def test_nothing_is_unpickled(tmp_path: Path, name: str, how: str) -> None:
    marker = tmp_path / "unpickled"
    objects = np.array([Evil(marker)] * 12, dtype=object)
    content = {
        "object array": npy(objects),
        "bare pickle": pickle.dumps(Evil(marker)),
        "no .npy": pickle.dumps(Evil(marker)),
        "structured": npy(np.array([(Evil(marker),)] * 12, dtype=[("a", object)])),
    }[how]
    members = {
        "images.npy": npy(PIXELS),
        "labels.npy": npy(LABELS),
        name + ("" if how == "no .npy" else ".npy"): content,
    }
    survives("npz: pickles", lambda: pool(archive(tmp_path, members)), tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["class_names", "groups", "labels", "images"])
@pytest.mark.parametrize("description", ["'<U0'", "'S0'", "'V0'"])
def test_a_billion_values_of_no_size(tmp_path: Path, name: str, description: str) -> None:
    members = {
        "images.npy": npy(PIXELS),
        "labels.npy": npy(LABELS),
        f"{name}.npy": header(description, "(2000000000,)"),
    }
    assert survives("npz: no size", lambda: pool(archive(tmp_path, members)), tmp_path) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_labels_and_pixels_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    for name in ("images", "labels"):
        good = {"images": PIXELS.astype(float) / 255, "labels": LABELS.astype(float)}[name]
        good.flat[5] = value
        members = {"images.npy": npy(PIXELS), "labels.npy": npy(LABELS), f"{name}.npy": npy(good)}
        assert survives("npz: not finite", lambda m=members: pool(archive(tmp_path, m)), tmp_path) is None  # type: ignore[misc]
