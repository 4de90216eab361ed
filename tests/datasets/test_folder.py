from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leakboard.core.errors import UserError
from leakboard.datasets.folder import Folder


def save(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def read(path: Path, **parameters: object) -> tuple[list[int], list[int], list[bool], tuple[str, ...]]:
    """Red values, labels, is_test and class names."""
    pool = Folder.parse({"path": str(path), **parameters}, "folder").read()
    reds = pool.pixels[:, 0].float().mean((1, 2)).round().int().tolist()
    return reds, pool.labels.tolist(), pool.is_test.tolist(), pool.class_names


def test_plain_layout_in_natural_order(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "img10.png", (10, 0, 0))
    save(tmp_path / "cat" / "img2.PNG", (2, 0, 0))
    save(tmp_path / "ant" / "a.png", (100, 0, 0))
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden").mkdir()
    assert read(tmp_path) == ([100, 2, 10], [0, 1, 1], [False] * 3, ("ant", "cat"))


def test_train_and_test_layout(tmp_path: Path) -> None:
    save(tmp_path / "train" / "ant" / "1.png", (1, 0, 0))
    save(tmp_path / "train" / "cat" / "1.png", (2, 0, 0))
    save(tmp_path / "test" / "cat" / "1.png", (3, 0, 0))
    assert read(tmp_path) == ([1, 2, 3], [0, 1, 1], [False, False, True], ("ant", "cat"))


def test_jpeg_size_and_channels(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.jpg", (200, 200, 200))
    save(tmp_path / "b" / "1.jpeg", (50, 50, 50))
    colour = Folder(path=str(tmp_path), size=48).read()
    grey = Folder(path=str(tmp_path), channels=1).read()
    assert colour.shape == (3, 48, 48)
    assert grey.shape == (1, 32, 32)
    assert grey.pixels.float().mean((1, 2, 3)).tolist() == pytest.approx([200, 50], abs=2)


def test_resizing_is_antialiased(tmp_path: Path) -> None:
    # a fine chequerboard is grey when shrunk by averaging, black or white when shrunk by picking
    board = (np.indices((320, 320)).sum(0) % 2 * 255).astype(np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(board).save(tmp_path / "a" / "1.png")
    pixels = Folder(path=str(tmp_path)).read().pixels
    assert 120 < int(pixels.min()) <= int(pixels.max()) < 135


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", (1, 2, 3), size=(200, 200))
    broken = tmp_path / "a" / "2.png"
    broken.write_bytes(b"this is no picture")
    with pytest.raises(UserError, match=r"2\.png cannot be read: it is neither a PNG nor a JPEG"):
        read(tmp_path)
    broken.write_bytes((tmp_path / "a" / "1.png").read_bytes()[:60])  # cut short
    with pytest.raises(UserError, match=r"2\.png cannot be read: "):
        read(tmp_path)


def test_other_formats_are_refused_whatever_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "a" / "1.png", format="BMP")
    with pytest.raises(UserError, match="neither a PNG nor a JPEG"):
        read(tmp_path)


@pytest.mark.parametrize("side", [12, 20])  # over the limit PIL warns, over twice the limit it raises
def test_decompression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    save(tmp_path / "a" / "1.png", (0, 0, 0), size=(side, side))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UserError, match=r"1\.png is too large: allowed are at most 100 pixels"):
        read(tmp_path)


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((20, 20), 40000, dtype=np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(UserError, match="more than 8 bits per channel"):
        read(tmp_path)


def test_too_much_to_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a" / "1.png", (0, 0, 0))
    monkeypatch.setattr("leakboard.datasets.building_blocks.images.MAX_BYTES", 1000)
    with pytest.raises(UserError, match="choose a smaller `size`"):
        read(tmp_path)


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be an existing folder; given: ''"):
        Folder().read()
    with pytest.raises(UserError, match="must be an existing folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no classes"):
        read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty has no pictures: allowed are \.png, \.jpg, \.jpeg"):
        read(tmp_path)


def test_test_classes_must_be_training_classes(tmp_path: Path) -> None:
    save(tmp_path / "train" / "cat" / "1.png", (0, 0, 0))
    save(tmp_path / "test" / "cats" / "1.png", (0, 0, 0))
    with pytest.raises(UserError, match="no training class 'cats': did you mean 'cat'"):
        read(tmp_path)


def test_size_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'size' is wrong"):
        read(tmp_path, size=8)


def test_own_images_are_normalised_alike() -> None:
    assert Folder.normalisation(1) == ((0.5,), (0.25,))
    assert Folder.normalisation(3) == ((0.5,) * 3, (0.25,) * 3)
