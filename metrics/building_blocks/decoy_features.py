"""LPIPS features of decoys in half precision: which decoys are certainly nearer than an original, or certainly not.

All cells of a data set and seed have the same decoys, and their features take most of a cell's scoring. So they are
kept, in half precision and with the error that this makes. Distances to them bound the true distances, and only decoys
between the bounds pass the network again. The result is that of the true features, with or without the kept file.

A file lies in the folder of the run, which no attack may open. Only the process that scores writes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from leakboard.core.files import keep_tensors
from leakboard.metrics.building_blocks import backbone
from leakboard.metrics.building_blocks.backbone import Network, digest
from leakboard.metrics.perceptual import CHUNK, prepare

#: features that are multiplied at once: the error bound of a sum grows with their number
BLOCK = 512
#: relative error that is allowed for the distances that decide where the bounds do not
ROUNDING = 1e-3


@torch.no_grad()
def embed(images: Tensor, network: Network) -> Tensor:
    """Vectors (N, F) whose squared L2 distances are LPIPS: each image passes the backbone once, not once per pair."""
    if len(images) > CHUNK:
        return torch.cat([embed(part, network) for part in torch.split(images, CHUNK)])
    parts = []
    for features, weights in zip(network.layers(prepare(images)), network.channel_weights, strict=True):
        positions = features.shape[-1] * features.shape[-2]
        parts.append((features * (weights / positions).sqrt().view(-1, 1, 1)).flatten(1))
    return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class Sketch:
    """Features (D, F) in half precision; `error` (D,) is their distance to the true ones, `square` (D,) their norm^2.

    Both are float64.
    """

    half: Tensor
    error: Tensor
    square: Tensor

    def bounds(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (N, D) of the distances between vectors (N, F) and the true features.

        |a - h|^2 = |a|^2 + |h|^2 - 2 a.h, where a block of n products in float32 has an error of at most
        n 2^-24 |a| |h|. The distance to the true features differs from |a - h| by `error` at most.
        """
        products = torch.zeros(len(vectors), len(self.half), dtype=torch.float64)
        for start in range(0, vectors.shape[1], BLOCK):
            part = slice(start, start + BLOCK)
            products += (vectors[:, part] @ self.half[:, part].float().T).double()
        squares = vectors.double().square().sum(1, keepdim=True)
        slack = 2 * BLOCK * 2**-24 * (squares * self.square).sqrt()
        square = squares + self.square - 2 * products
        low, high = ((square + sign * slack).clamp(min=0).sqrt() for sign in (-1, 1))
        return low - self.error, high + self.error

    def compared(self, own: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Which decoys are certainly nearer to a vector than its own image at distance `own` (N,), and which may be."""
        low, high = self.bounds(vectors)
        own = own.double()[:, None]
        nearer = high * (1 + ROUNDING) < own
        far = low > own * (1 + ROUNDING)
        return nearer, ~nearer & ~far  # what is not a number is neither, so its distance is computed


def sketch_of(decoys: Tensor, network: Network, folder: str) -> Sketch:
    """The sketch of decoys (D, C, H, W): kept in the folder, or computed and kept there if a folder is named."""
    file = Path(folder) / f"{_key(decoys, network)}.safetensors"
    found = _load(file, len(decoys)) if folder else None
    if found is None:
        found = _sketch(decoys, network)
        if folder:
            keep_tensors(file, {"half": found.half, "error": found.error, "square": found.square})
    return found


def _sketch(decoys: Tensor, network: Network) -> Sketch:
    halves, errors, squares = [], [], []
    for part in torch.split(decoys, CHUNK):
        true = embed(part, network)
        halves.append(true.half())
        near = halves[-1].double()
        errors.append((near - true).norm(dim=1))
        squares.append(near.square().sum(1))
    return Sketch(torch.cat(halves), torch.cat(errors), torch.cat(squares))


def _key(decoys: Tensor, network: Network) -> str:
    """The digest of everything that determines the features; that of the backbone is known, as no other is loaded."""
    channels = digest({str(i): part for i, part in enumerate(network.channel_weights)})
    found = hashlib.sha256(f"{tuple(decoys.shape)} {torch.__version__} {backbone.FEATURES_SHA256} {channels}".encode())
    found.update(decoys.detach().float().contiguous().numpy().data)
    return found.hexdigest()


def _load(file: Path, count: int) -> Sketch | None:
    """A kept sketch; None if there is none, or the file is incomplete or of another form."""
    try:
        kept = load_file(file)  # mapped, not read: the half that is needed comes block by block
        found = Sketch(kept["half"], kept["error"], kept["square"])
    except (OSError, SafetensorError, LookupError, ValueError, RuntimeError):
        return None
    numbers = all(value.dtype == torch.float64 and value.shape == (count,) for value in (found.error, found.square))
    half = found.half.dtype == torch.float16 and found.half.ndim == 2 and len(found.half) == count
    return found if half and numbers and _is_consistent(found) else None


def _is_consistent(sketch: Sketch) -> bool:
    """Whether errors can be errors, and the squares are those of the features; a damaged file is computed again."""
    squares = torch.cat([part.float().square().sum(1) for part in torch.split(sketch.half, CHUNK)])
    errors = bool((sketch.error >= 0).all()) and bool(sketch.error.isfinite().all())
    return errors and torch.allclose(squares.double(), sketch.square, rtol=1e-3, atol=1e-12)
