from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from leakboard.datasets.digits import Digits


def test_shapes_and_labels() -> None:
    pool = Digits().read()
    assert pool.pixels.shape == (1797, 1, 32, 32)
    assert pool.pixels.dtype == torch.uint8
    assert pool.labels.tolist() == load_digits().target.tolist()
    assert not pool.is_test.any()
    assert pool.class_names == tuple("0123456789")


def test_upsampling_is_bilinear_by_hand() -> None:
    # prepare: a 4-fold upsampling samples at (i + 0.5) / 4 - 0.5, clamped at the border
    pixels = Digits().read().pixels[:, 0].double()
    source = torch.tensor(load_digits().images, dtype=torch.float64) * 255 / 16
    # execute: output row 5 lies at 0.875 of the way from source row 0 to 1, column 0 at the border
    expected = (0.125 * source[:, 0, 0] + 0.875 * source[:, 1, 0]).round()
    # assert
    assert torch.equal(pixels[:, 5, 0], expected)
    assert torch.equal(pixels[:, 0, 0], source[:, 0, 0].round())


def test_mean_and_std_are_those_of_the_images() -> None:
    images = Digits().read().pixels.float() / 255
    assert images.mean().item() == pytest.approx(Digits.mean[0], abs=1e-3)
    assert images.std().item() == pytest.approx(Digits.std[0], abs=1e-3)


def test_digest_is_the_same_on_every_machine() -> None:
    assert Digits().read().digest() == "a8ab40f16f59a5d54c41be0b539761c1e3609c1cec5edb94d1d4c48baed0df61"
