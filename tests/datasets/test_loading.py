from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from leakboard.core.errors import UserError
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.loading import load_pool

CLASSES = 4


def good_pool() -> ImagePool:
    return ImagePool(
        torch.zeros((400, 1, 16, 16), dtype=torch.uint8),
        torch.arange(400) % CLASSES,
        torch.arange(400) >= 300,
        tuple("abcd"),
    )


class Fixed(Dataset):
    """A pool made by the test."""

    kind: ClassVar[str] = "test-only"
    pool: Any = None

    def read(self) -> ImagePool:
        found: ImagePool = self.pool
        return found


Fixed.name = "fixed"  # set late: a class that sets it in its body is a plugin


def load(pool: ImagePool, noise: float = 0.0) -> ImagePool:
    return load_pool(Fixed(pool=pool, label_noise=noise))


def test_without_noise_nothing_changes() -> None:
    assert load(good_pool()).digest() == good_pool().digest()


@pytest.mark.parametrize("noise", [0.1, 0.25, 0.333, 1.0])
def test_noise_replaces_the_exact_share_of_training_labels(noise: float) -> None:
    before, after = good_pool(), load(good_pool(), noise)
    changed = before.labels != after.labels
    assert int(changed[:300].sum()) == round(noise * 300)
    assert not changed[300:].any()
    assert 0 <= int(after.labels.min()) <= int(after.labels.max()) < CLASSES


def test_noise_is_deterministic_and_leaves_the_source_alone() -> None:
    pool = good_pool()
    assert torch.equal(load(pool, 0.5).labels, load(pool, 0.5).labels)
    assert torch.equal(pool.labels, good_pool().labels)


def test_noise_reaches_all_other_classes_alike() -> None:
    pool = replace(
        good_pool(),
        pixels=torch.zeros((4000, 1, 1, 1), dtype=torch.uint8),
        labels=torch.zeros(4000, dtype=torch.int64).index_fill(0, torch.tensor([0]), 1),
        is_test=torch.zeros(4000, dtype=torch.bool),
    )
    counts = torch.bincount(load(pool, 1.0).labels[1:], minlength=CLASSES)
    assert counts[0] == 0
    assert (counts[1:] > 1200).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": torch.zeros((400, 1, 16, 16))}, "pixels must be uint8"),
        ({"pixels": torch.zeros((400, 16, 16), dtype=torch.uint8)}, "pixels must be uint8"),
        ({"pixels": torch.zeros((399, 1, 16, 16), dtype=torch.uint8)}, "one for each of 400 labels"),
        ({"labels": torch.zeros(400)}, "labels must be torch.int64"),
        ({"is_test": torch.zeros(400, dtype=torch.int64)}, "is_test must be torch.bool"),
        ({"groups": torch.zeros(3, dtype=torch.int64)}, "groups must be torch.int64"),
        ({"class_names": ("a", "b")}, "labels must be 0 to 1, one for each class name; given: 0 to 3"),
        ({"labels": torch.arange(400) % CLASSES - 1}, "given: -1 to 2"),
        ({"labels": torch.zeros(400, dtype=torch.int64)}, "at least 2 classes of training images are needed; given: 1"),
        ({"is_test": torch.arange(400) >= 9}, "at least 10 training images are needed; given: 9"),
        ({"is_test": torch.ones(400, dtype=torch.bool)}, "at least 10 training images are needed; given: 0"),
    ],
)
def test_faults(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match="^The data set 'fixed' cannot be used: .*" + message):
        load(replace(good_pool(), **change))
