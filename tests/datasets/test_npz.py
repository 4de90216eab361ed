from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakboard.core.errors import UserError
from leakboard.datasets.base import ImagePool
from leakboard.datasets.npz import Npz

LABELS = np.array([0, 1, 2, 0, 1, 2])
RGB = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)


def write(path: Path, **arrays: Any) -> Path:
    file = path / "data.npz"
    np.savez(file, **arrays)
    return file


def read(file: Path, **parameters: Any) -> ImagePool:
    return Npz.parse({"path": str(file), **parameters}, "npz").read()


@pytest.mark.parametrize(
    "images",
    [
        RGB,
        RGB.transpose(0, 3, 1, 2),
        RGB.transpose(0, 3, 1, 2).astype(np.float32) / 255,
        RGB.astype(np.float64) / 255,
        np.asfortranarray(RGB),
    ],
    ids=["NHWC", "NCHW", "float32", "float64", "fortran"],
)
def test_all_forms_give_the_same_pixels(tmp_path: Path, images: Any) -> None:
    pool = read(write(tmp_path, images=images, labels=LABELS))
    assert np.array_equal(pool.pixels.numpy(), RGB.transpose(0, 3, 1, 2))
    assert pool.labels.tolist() == LABELS.tolist()
    assert pool.class_names == ("0", "1", "2")
    assert not pool.is_test.any()
    assert pool.groups is None


def test_grey_images_and_labels_in_a_column(tmp_path: Path) -> None:
    pool = read(write(tmp_path, images=RGB[..., 0], labels=LABELS[:, None].astype(np.uint8)))
    assert pool.shape == (1, 16, 16)
    assert pool.labels.tolist() == LABELS.tolist()


def test_train_and_test_names_groups_and_extras(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        train_images=RGB[:4],
        train_labels=LABELS[:4],
        test_images=RGB[4:],
        test_labels=LABELS[4:],
        train_groups=np.array(["b", "b", "a", "a"]),
        test_groups=np.array(["long name", "b"]),
        class_names=np.array(["x", "y", "z", "never seen"]),
        train_index=np.array([{"an": "object that is never touched"}], dtype=object),
    )
    pool = read(file)
    assert pool.is_test.tolist() == [False] * 4 + [True] * 2
    assert pool.class_names == ("x", "y", "z", "never seen")
    assert pool.groups is not None
    assert pool.groups.tolist() == [1, 1, 0, 0, 2, 1]
    assert np.array_equal(pool.pixels.numpy(), RGB.transpose(0, 3, 1, 2))


def test_keys_choose_the_arrays(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        images=RGB,
        malignant=LABELS > 0,
        slide=np.array([7, 7, 8, 8, 9, 9]),
        sides=np.array(["benign", "malignant"]),
    )
    pool = read(file, labels_key="malignant", groups_key="slide", names_key="sides")
    assert pool.labels.tolist() == [0, 1, 1, 0, 1, 1]
    assert pool.class_names == ("benign", "malignant")
    assert pool.groups is not None
    assert pool.groups.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": LABELS}, "must have either an array `images` or `train_images`; it holds labels"),
        ({"images": RGB, "train_images": RGB, "labels": LABELS}, "either an array `images` or `train_images`"),
        ({"images": RGB}, "has no array 'labels': it holds images"),
        ({"images": RGB[:, :12], "labels": LABELS}, r"H = W ≥ 16 .*given: uint8 \(6, 12, 16, 3\)"),
        ({"images": RGB[:, :8, :8], "labels": LABELS}, "H = W ≥ 16"),
        ({"images": RGB[..., :2], "labels": LABELS}, "C = 1 or 3"),
        ({"images": RGB[0, 0], "labels": LABELS}, "C = 1 or 3"),
        ({"images": RGB.astype(np.int64), "labels": LABELS}, "must be uint8 or floats"),
        ({"images": RGB.astype(np.float32), "labels": LABELS}, r"must lie in \[0, 1\]; given: 0.0 to 255.0"),
        ({"images": np.full((6, 16, 16), np.nan), "labels": LABELS}, r"must lie in \[0, 1\]"),
        ({"images": RGB, "labels": LABELS[:5]}, r"must be \(6,\) whole numbers; given: int64 \(5,\)"),
        ({"images": RGB, "labels": LABELS / 2}, "whole numbers; given: float64"),
        ({"images": RGB, "labels": LABELS - 1}, "must be 0 to 9999; given: -1 to 1"),
        ({"images": RGB, "labels": LABELS.astype(np.uint64) + np.uint64(2**63)}, "must be 0 to 9999"),
        ({"images": RGB, "labels": LABELS * 2}, "each at least once; given: up to 4, without 1"),
        ({"images": RGB, "labels": LABELS, "class_names": np.array(["x"])}, "must name 3 to 10000 classes; given: <U1"),
        ({"images": RGB, "labels": LABELS, "groups": LABELS[:2]}, r"must be \(6,\) numbers or text"),
        ({"images": RGB, "labels": LABELS, "groups": LABELS / 2}, "numbers or text; given: float64"),
        (
            {"train_images": RGB, "train_labels": LABELS, "test_images": RGB[..., 0], "test_labels": LABELS},
            r"one shape; given: \(3, 16, 16\) and \(1, 16, 16\)",
        ),
        (
            {
                "train_images": RGB,
                "train_labels": LABELS,
                "test_images": RGB,
                "test_labels": LABELS,
                "train_groups": LABELS,
            },
            "has no array 'test_groups'",
        ),
    ],
)
def test_mistakes(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, **arrays))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a `path`: give it as npz:FILE"):
        Npz().read()
    with pytest.raises(UserError, match=r"There is no file .*nowhere\.npz"):
        read(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(UserError, match="is not a readable npz file"):
        read(tmp_path / "text.npz")


class Evil:
    """Unpickling this leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "was unpickled"
    file = write(tmp_path, images=RGB, labels=np.array([Evil(marker)] * 6, dtype=object))
    with pytest.raises(UserError, match=r"'labels' .* holds Python objects, which are never unpickled"):
        read(file)
    assert not marker.exists()
    np.load(file, allow_pickle=True)["labels"]  # the trap is a real one
    assert marker.exists()


def with_member(path: Path, content: bytes) -> Path:
    """An npz file whose `images` is these bytes."""
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
        archive.writestr("labels.npy", labels.getvalue())
    return path / "data.npz"


def header(shape: str, version: tuple[int, int] = (1, 0)) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text


def test_zip_bombs_are_refused_by_their_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the array was decoded")

    monkeypatch.setattr("numpy.lib.format.read_array", never)
    file = with_member(tmp_path, header("(1000000, 224, 224, 3)") + bytes(10_000))
    with pytest.raises(UserError, match=r"needs 140\.2 GiB: at most 2 GiB are read from one file"):
        read(file)


def test_the_limit_is_for_all_arrays_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, images=RGB, labels=LABELS)
    monkeypatch.setattr("leakboard.datasets.building_blocks.npz_reader.MAX_BYTES", RGB.nbytes + LABELS.nbytes)
    assert len(read(file).labels) == 6
    monkeypatch.setattr("leakboard.datasets.building_blocks.npz_reader.MAX_BYTES", RGB.nbytes + LABELS.nbytes - 1)
    with pytest.raises(UserError, match="The array 'labels'"):
        read(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("(6, 16, 16)", version=(2, 0)) + bytes(1536), "is not a plain one"),
        (header("(6, -16, 16)") + bytes(1536), "not a readable npz"),
        (header("(6, 16, 16)") + bytes(1535), "not a readable npz"),
        (header("(6, 16, 16)") + bytes(1537), "data after the array"),
        (header("__import__('os')"), "not a readable npz"),
        (b"", "not a readable npz"),
    ],
    ids=["version", "negative", "short", "long", "code", "empty"],
)
def test_crooked_arrays(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(with_member(tmp_path, content))


def test_a_changed_pixel_is_noticed(tmp_path: Path) -> None:
    file = write(tmp_path, images=RGB, labels=LABELS)
    content = bytearray(file.read_bytes())
    content[content.index(RGB.tobytes()[:64])] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="Bad CRC-32"):
        read(file)
