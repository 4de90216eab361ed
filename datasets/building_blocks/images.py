"""Decodes picture files of the user, all to one size."""

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
#: at most this many bytes are ever decoded into memory
MAX_BYTES = 2 * 1024**3


def decode(path: Path, size: int, channels: int) -> Tensor:
    """One picture as (C, size, size) uint8: bilinear with antialiasing; the aspect ratio is not preserved."""
    try:
        with warnings.catch_warnings():
            # between its limit and twice that, PIL only warns; a picture that large is not a training image
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG")) as picture:
                if picture.mode.startswith(("I", "F")):  # converting these would clip at 255 instead of scaling
                    raise UserError(
                        f"The picture {path} has more than 8 bits per channel: allowed are 8-bit PNG or JPEG."
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
            "can be decoded, choose a smaller `size`."
        )
    pixels = torch.empty((len(paths), channels, size, size), dtype=torch.uint8)
    for position, path in enumerate(paths):
        pixels[position] = decode(path, size, channels)
    return pixels


def existing_folder(given: str, what: str) -> Path:
    """The folder that the user named; raises a `UserError` that starts with `what` if it does not exist."""
    folder = Path(given).expanduser()
    if not given or not folder.is_dir():
        raise UserError(f"{what} must be an existing folder; given: '{given}'.")
    return folder
