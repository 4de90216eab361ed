"""`hf:…` with the real library, on data sets that it saved on this disk; skipped where it is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.datasets.hf import HuggingFace
from leakboard.datasets.loading import load_pool


def test_without_the_library_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs the library `datasets` of Hugging Face: pip install"):
        HuggingFace(path="anything").read()


def test_a_name_is_needed() -> None:
    with pytest.raises(UserError, match="hf:NAME"):
        HuggingFace().read()


def pictures(count: int, side: int = 20, seed: int = 0) -> list[Image.Image]:
    random = np.random.default_rng(seed)
    return [Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)) for _ in range(count)]


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("datasets", reason="the library `datasets` is not installed: make test-flower has it")


@pytest.fixture
def saved(library: Any, tmp_path: Path) -> Path:
    """A data set with two splits, as the library writes it."""
    features = library.Features({"img": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    parts = {
        name: library.Dataset.from_dict(
            {"img": pictures(count, seed=seed), "label": [i % 2 for i in range(count)]}, features=features
        )
        for name, count, seed in (("train", 12, 0), ("test", 4, 1))
    }
    library.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_both_splits_become_one_pool(saved: Path) -> None:
    pool = load_pool(registry.create("dataset", f"hf:{saved}", {"size": 20}))  # type: ignore[arg-type]
    assert pool.shape == (3, 20, 20)
    assert pool.class_names == ("cat", "dog")
    assert pool.is_test.tolist() == [False] * 12 + [True] * 4
    assert pool.labels.tolist() == [0, 1] * 8
    first = torch.from_numpy(np.array(pictures(1)[0])).permute(2, 0, 1)
    assert torch.equal(pool.pixels[0], first)  # lossless, and not resized
    assert pool.digest() == load_pool(HuggingFace(path=str(saved), size=20)).digest()


def test_size_and_channels(saved: Path) -> None:
    assert HuggingFace(path=str(saved), size=64, channels=1).read().shape == (1, 64, 64)


def test_texts_arrays_and_a_single_split(library: Any, tmp_path: Path) -> None:
    arrays = [np.array(picture)[:, :, 0].tolist() for picture in pictures(12)]
    made = library.Dataset.from_dict({"scan": arrays, "kind": ["b", "a"] * 6})
    made.save_to_disk(str(tmp_path / "one"))
    given = HuggingFace(path=str(tmp_path / "one"), image_column="scan", label_column="kind", size=20, channels=1)
    pool = given.read()
    assert pool.class_names == ("a", "b")
    assert pool.labels.tolist() == [1, 0] * 6
    assert not bool(pool.is_test.any())
    assert torch.equal(pool.pixels[0, 0], torch.tensor(arrays[0]).to(torch.uint8))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"train": "training"}, "did you mean 'train'"),
        ({"image_column": "picture"}, "has the columns img, label: `image_column` must name one"),
        ({"image_column": "label"}, "must hold pictures; record 0 is none"),
        ({"label_column": "img"}, "must hold class numbers"),
    ],
)
def test_a_wrong_column_gets_one_sentence(saved: Path, settings: dict[str, str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        HuggingFace(path=str(saved), **settings).read()
    assert expected in str(caught.value)
