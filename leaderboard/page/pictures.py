"""Images as PNG files for the page and as text for a terminal."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from leakboard.core.files import write_bytes

GAP = 1  # pixels between two images
GREY = 128  # for gaps and non-finite pixels: visible on a light and on a dark page
RAMP = " .:-=+*#%@"
_FIRST_GREY, _GREYS = 232, 24  # the greys among the 256 colours of a terminal
IN_A_STRIP = 8  # images per strip: as many as a phone can show
SHOWN = 72  # width of an image on the page in CSS pixels


@dataclass(frozen=True)
class Picture:
    """A PNG file of the page, with its number of images and the size at which it is shown."""

    file: str
    images: int
    width: int
    height: int


@dataclass(frozen=True)
class Strip:
    """Originals above reconstructions. `first` is the index of the first image."""

    first: int
    original: Picture | None
    reconstruction: Picture | None

    @property
    def images(self) -> int:
        """The number of images side by side."""
        return max(picture.images for picture in (self.original, self.reconstruction) if picture)


def strip(images: Tensor) -> bytes:
    """A PNG of images (N, C, H, W) side by side, one pixel apart; C is 1 (grey) or 3 (RGB).

    Values are in image units and clamped to [0, 1]. Non-finite values become mid-grey.

    >>> Image.open(io.BytesIO(strip(torch.zeros(8, 1, 32, 32)))).size
    (263, 32)
    """
    return _png(side_by_side(images))


def side_by_side(images: Tensor, gap: int = GAP, shade: int = GREY) -> Tensor:
    """Images (N, C, H, W) in image units as bytes (C, H, N·W + gaps of this shade), clamped as in `strip`."""
    pixels = _pixels(images)
    number, channels, height, width = pixels.shape
    row = pixels.new_full((channels, height, number * (width + gap) - gap), shade)
    for index, image in enumerate(pixels):
        start = index * (width + gap)
        row[:, :, start : start + width] = image
    return row


def ascii_picture(image: Tensor, width: int = 32, *, colour: bool = True) -> str:
    """An image (C, H, W) as lines of `width` characters: grey half blocks, or ASCII without colour.

    A character is about twice as high as it is wide, so each shows two pixels, one above the other.

    >>> print(ascii_picture(torch.linspace(0, 1, 10).expand(1, 4, 10), width=10, colour=False))
     .:-=+*#%@
     .:-=+*#%@
    """
    if width < 1:
        raise ValueError(f"A picture must be at least 1 character wide; given: {width}.")
    pixels = _pixels(image.unsqueeze(0)).float().mean(dim=1, keepdim=True) / 255
    lines = max(1, round(width * pixels.shape[2] / pixels.shape[3] / 2))
    grey = interpolate(pixels, size=(2 * lines, width), mode="area")[0, 0].reshape(lines, 2, width)
    if not colour:
        steps = (grey.mean(dim=1) * (len(RAMP) - 1)).round().int().tolist()
        return "\n".join("".join(RAMP[step] for step in line) for line in steps)
    codes = _FIRST_GREY + (grey * (_GREYS - 1)).round().int()
    return "\n".join(
        "".join(f"\x1b[38;5;{top};48;5;{bottom}m▀" for top, bottom in zip(*line, strict=True)) + "\x1b[0m"
        for line in codes.tolist()
    )


def save_strips(folder: Path, originals: Tensor | None, reconstructions: Tensor | None) -> list[Strip]:
    """Write images (N, C, H, W) into `folder/images`, a few per strip; row i of one belongs to row i of the other."""
    both = [images for images in (originals, reconstructions) if images is not None]
    starts = range(0, max((len(images) for images in both), default=0), IN_A_STRIP)
    return [Strip(at, _save(folder, originals, at), _save(folder, reconstructions, at)) for at in starts]


def remove_other_images(folder: Path, kept: Iterable[Strip]) -> None:
    """Remove the strips of an earlier page from `folder/images`. Files with other names stay."""
    names = {picture.file for part in kept for picture in (part.original, part.reconstruction) if picture}
    for path in (folder / "images").glob("*.png"):
        if f"images/{path.name}" not in names and re.fullmatch(r"[0-9a-f]{16}\.png", path.name):
            path.unlink()


def _save(folder: Path, images: Tensor | None, start: int) -> Picture | None:
    """Write one strip, named by the hash of its content, so that equal strips (originals) share a file."""
    if images is None or start >= len(images):
        return None
    part = images[start : start + IN_A_STRIP]
    content = strip(part)
    name = f"images/{hashlib.sha256(content).hexdigest()[:16]}.png"
    if not (folder / name).exists():
        write_bytes(folder / name, content)
    number, _, height, width = part.shape
    scale = SHOWN / width
    return Picture(name, number, round((number * (width + GAP) - GAP) * scale), round(height * scale))


def _pixels(images: Tensor) -> Tensor:
    """Images as bytes (N, C, H, W); ValueError if the shape is wrong."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(f"Images must be (N, 1 or 3, H, W), at least one; given: {tuple(images.shape)}.")
    values = images.detach().to("cpu", torch.float32)
    scaled = (values.nan_to_num().clamp(0, 1) * 255).round()
    return torch.where(values.isfinite(), scaled, GREY).to(torch.uint8)


def _png(pixels: Tensor) -> bytes:
    """Bytes (C, H, W) as a PNG file; the same pixels always give the same file."""
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    out = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(out, format="PNG", optimize=True)
    return out.getvalue()
