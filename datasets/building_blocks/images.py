"""Decodes picture files that a user gave, all to one size."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from leakboard.core.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg")
#: no more than this is ever decoded into memory
MAX_BYTES = 2 * 1024**3


def decode(path: Path, size: int, channels: int) -> Tensor:
    """One picture as (C, size, size) uint8: bilinear with antialiasing, the aspect ratio is not kept."""
    try:
        with warnings.catch_warnings():
            # PIL only warns between its limit and twice that; a picture that large is no training image
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG")) as picture:
                if picture.mode.startswith(("I", "F")):  # converting these would clip at 255, not scale
                    raise UserError(
                        f"The picture {path} has more than 8 bits a channel: allowed are 8-bit PNG or JPEG."
                    )
                colour = picture.convert("RGB" if channels == 3 else "L")
                small = colour.resize((size, size), Image.Resampling.BILINEAR)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = Image.MAX_IMAGE_PIXELS
        raise UserError(f"The picture {path} is too large: allowed are at most {limit} pixels.") from None
    except UnidentifiedImageError:
        raise UserError(f"The picture {path} cannot be read: it is neither a PNG nor a JPEG file.") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # what PIL's decoders raise on damaged files
        raise UserError(f"The picture {path} cannot be read: {' '.join(str(error).split())}.") from None
    return torch.from_numpy(np.array(small, dtype=np.uint8).reshape(size, size, channels)).permute(2, 0, 1)


def decode_all(paths: Sequence[Path], size: int, channels: int) -> Tensor:
    """All pictures as (N, C, size, size) uint8, in that order."""
    needed = len(paths) * channels * size * size
    if needed > MAX_BYTES:
        raise UserError(
            f"{len(paths)} pictures at {size}×{size} need {needed / 2**30:.1f} GiB: at most {MAX_BYTES / 2**30:.0f} "
            "are decoded, choose a smaller `size`."
        )
    pixels = torch.empty((len(paths), channels, size, size), dtype=torch.uint8)
    for position, path in enumerate(paths):
        pixels[position] = decode(path, size, channels)
    return pixels


def existing_folder(given: str, what: str) -> Path:
    """The folder that the user named, or a `UserError` that begins with `what`."""
    folder = Path(given).expanduser()
    if not given or not folder.is_dir():
        raise UserError(f"{what} must be a folder that is there; given: '{given}'.")
    return folder
