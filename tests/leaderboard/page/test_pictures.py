"""Strips decode to the right pixels; terminal pictures have the right size and shades."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from leakboard.leaderboard.page.pictures import (
    RAMP,
    ascii_picture,
    remove_other_images,
    save_strips,
    side_by_side,
    strip,
)


def decoded(png: bytes) -> npt.NDArray[np.uint8]:
    assert png.startswith(b"\x89PNG")
    return np.asarray(Image.open(io.BytesIO(png)))


def test_a_grey_strip_has_its_images_side_by_side_and_a_gap_between() -> None:
    images = torch.stack([torch.full((1, 4, 5), value) for value in (0.0, 0.2, 1.0)])
    pixels = decoded(strip(images))
    assert pixels.shape == (4, 3 * 5 + 2)
    assert pixels[2].tolist() == [0] * 5 + [128] + [51] * 5 + [128] + [255] * 5


def test_a_colour_strip_keeps_channels_rows_and_columns_apart() -> None:
    images = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    pixels = decoded(strip(images))
    assert pixels.shape == (4, 11, 3)
    expected = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(pixels[:, :5], expected[0])
    assert np.array_equal(pixels[:, 6:], expected[1])


def test_values_outside_are_clamped_and_what_is_no_number_is_mid_grey() -> None:
    row = torch.tensor([-3.0, 7.0, torch.nan, torch.inf, -torch.inf, 0.4])
    assert decoded(strip(row.reshape(1, 1, 1, 6))).tolist() == [[0, 255, 128, 128, 128, 102]]
    doubles = row.double().reshape(1, 1, 1, 6).requires_grad_()  # straight from an optimiser
    assert strip(doubles) == strip(row.reshape(1, 1, 1, 6))


@pytest.mark.parametrize("shape", [(0, 1, 4, 4), (2, 2, 4, 4), (2, 4, 4, 4), (1, 4, 4), (1, 1, 0, 4)])
def test_a_shape_that_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Images must be"):
        strip(torch.zeros(shape))


def test_images_side_by_side_have_the_gap_that_is_asked_for() -> None:
    row = side_by_side(torch.zeros(2, 1, 1, 2), gap=3, shade=255)
    assert row.tolist() == [[[0, 0, 255, 255, 255, 0, 0]]]


def test_a_picture_in_colours_has_two_pixels_to_a_character() -> None:
    top_black = torch.cat([torch.zeros(1, 1, 2), torch.ones(1, 1, 2)], dim=1)
    assert ascii_picture(top_black, width=2) == "\x1b[38;5;232;48;5;255m▀" * 2 + "\x1b[0m"
    wide = ascii_picture(torch.rand(3, 32, 32), width=24).split("\n")
    assert len(wide) == 12
    assert all(line.count("▀") == 24 and line.endswith("\x1b[0m") for line in wide)


@pytest.mark.parametrize("width", [1, 7, 32, 100])
def test_a_plain_picture_is_ascii_of_the_asked_width(width: int) -> None:
    image = torch.rand(1, 28, 28)
    image[0, 3, 3] = torch.nan
    lines = ascii_picture(image, width, colour=False).split("\n")
    assert {len(line) for line in lines} == {width}
    assert len(lines) == max(1, round(width / 2))
    assert set("".join(lines)) <= set(RAMP)
    assert ascii_picture(torch.ones(3, 8, 8), 4, colour=False) == "@@@@\n@@@@"


def test_a_picture_needs_a_width() -> None:
    with pytest.raises(ValueError, match="at least 1 character"):
        ascii_picture(torch.ones(1, 8, 8), 0)


def test_strips_hold_eight_images_and_equal_ones_share_a_file(tmp_path: Path) -> None:
    strips = save_strips(tmp_path, torch.rand(11, 1, 8, 8), torch.zeros(16, 1, 8, 8))
    assert [(part.first, part.images) for part in strips] == [(0, 8), (8, 8)]
    assert [part.original and part.original.images for part in strips] == [8, 3]
    assert strips[0].reconstruction == strips[1].reconstruction
    assert save_strips(tmp_path, None, None) == []
    assert save_strips(tmp_path, None, torch.zeros(1, 1, 8, 8))[0].original is None
    files = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert len(files) == 4
    assert all(re.fullmatch(r"[0-9a-f]{16}\.png", name) for name in files)


def test_only_our_own_old_images_are_removed(tmp_path: Path) -> None:
    old = save_strips(tmp_path, torch.zeros(2, 1, 8, 8), None)
    new = save_strips(tmp_path, torch.ones(2, 1, 8, 8), None)
    (tmp_path / "images" / "holiday.png").write_bytes(b"mine")
    remove_other_images(tmp_path, new)
    left = {f"images/{path.name}" for path in (tmp_path / "images").iterdir()}
    assert new[0].original is not None
    assert left == {"images/holiday.png", new[0].original.file}
    assert old[0].original is not None
