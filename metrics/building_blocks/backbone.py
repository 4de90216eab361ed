"""The AlexNet backbone of LPIPS: read from a file, verified, and cached for the process.

LPIPS with another backbone is another metric under the same name, so the weights are pinned by a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from leakboard.core.errors import UserError
from leakboard.core.vision import torchvision
from leakboard.metrics.base import ReconstructionMetric

#: SHA-256 of torchvision's AlexNet_Weights.IMAGENET1K_V1, `features.*` only, as `digest` computes it
FEATURES_SHA256 = "44534cd66e37ce9a6258bb5e845ef8cd47c33aa68024441c7e616d63c0c1c41a"
#: SHA-256 of the channel weights in the package lpips (v0.1, alex), as `digest` computes it
CHANNELS_SHA256 = "885a51c7aba6f7ccf3321ca5f345fbd72201f3347f0a88e807016be494493f5d"
PREFIX = "features."
#: of AlexNet's convolutions: the number of the layer in torchvision; stride, padding, and whether a pooling comes first
NUMBERS = (0, 3, 6, 8, 10)
ARRANGEMENT = ((4, 2, False), (1, 2, True), (1, 1, True), (1, 1, False), (1, 1, False))
#: the normalisation of LPIPS v0.1 for images in [-1, 1], and what keeps a length from being 0
SHIFT, SCALE, TINY = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450), 1e-10
NO_WEIGHTS = "there are no LPIPS weights: `leakboard lpips --download` fetches them once, for all runs"


class WeightsMissing(Exception):
    """The weights are not available; the message becomes the reason of the `Score`."""


@dataclass(frozen=True)
class Network:
    """AlexNet's convolutions (weight, bias), and how much LPIPS makes of each of their channels (C,), never negative.

    The same function as `lpips.LPIPS(net="alex", version="0.1")` in eval mode. That package needs torchvision, and
    builds an AlexNet with 60 million random weights first: 1.5 CPU seconds in every process that scores.
    """

    convolutions: tuple[tuple[Tensor, Tensor], ...]
    channel_weights: tuple[Tensor, ...]

    def layers(self, images: Tensor) -> Iterator[Tensor]:
        """Features (N, C, H, W) of images in [-1, 1] after each convolution, of unit length at each position."""
        shift, scale = (torch.tensor(value).view(-1, 1, 1) for value in (SHIFT, SCALE))
        hidden = (images - shift) / scale
        for (weight, bias), (stride, padding, pools) in zip(self.convolutions, ARRANGEMENT, strict=True):
            hidden = max_pool2d(hidden, 3, 2) if pools else hidden
            hidden = conv2d(hidden, weight, bias, stride, padding).relu()
            yield hidden / (hidden.square().sum(1, keepdim=True).sqrt() + TINY)


class LpipsMetric(ReconstructionMetric):
    """Base of the metrics that need the backbone; its parameters give the location of the weights."""

    location_fields: ClassVar[tuple[str, ...]] = ("weights", "download", "kept")

    weights: str = Field(default="", description="File with AlexNet's features.* weights (.pth or .safetensors)")
    download: bool = Field(default=False, description="Whether torchvision may download the weights")
    kept: str = Field(default="", description="Folder for features of decoys, which no attack may reach; empty: none")


def digest(features: Mapping[str, Tensor]) -> str:
    """SHA-256 (hex) over names and little-endian float32 bytes, ordered by name.

    >>> digest({"features.0.bias": torch.zeros(2)})[:12]
    '5d262fe999af'
    """
    total = hashlib.sha256()
    for name in sorted(features):
        total.update(name.encode())
        total.update(features[name].detach().cpu().float().contiguous().numpy().astype("<f4").tobytes())
    return total.hexdigest()


def read_features(path: str) -> dict[str, Tensor]:
    """The `features.*` tensors of a file; a `UserError` if the file is missing or of another kind."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"There is no file {path} for the LPIPS weights: give a .pth or .safetensors file.")
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        features = {name: value for name, value in state.items() if name.startswith(PREFIX)}
        refuse_others(features, path)
    except UserError:
        raise
    except Exception as error:  # the readers raise a dozen kinds for a broken file, and the user has one mistake
        raise UserError(
            f"The LPIPS weights in {path} cannot be read ({type(error).__name__}): "
            "the file must be a state dict of AlexNet, .pth or .safetensors."
        ) from None
    return features


def refuse_others(features: Mapping[str, Tensor], path: str) -> None:
    """A `UserError` unless these are the weights that LPIPS was made with."""
    shown = digest(features)
    if shown != FEATURES_SHA256:
        raise UserError(
            f"The LPIPS weights in {path} are not torchvision's AlexNet (IMAGENET1K_V1): its features.* have "
            f"SHA-256 {FEATURES_SHA256[:12]}..., these have {shown[:12]}...."
        )


def download_features() -> dict[str, Tensor]:
    """The same tensors through torchvision's own download, into its own cache."""
    try:
        chosen = torchvision().models.AlexNet_Weights.IMAGENET1K_V1
        state: dict[str, Tensor] = chosen.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network (URLError is an OSError), or a wrong hash
        raise WeightsMissing(f"the LPIPS weights could not be downloaded: {type(error).__name__}") from error
    features = {name: value for name, value in state.items() if name.startswith(PREFIX)}
    if digest(features) != FEATURES_SHA256:
        raise WeightsMissing("the LPIPS weights that were downloaded are not those that this version expects")
    return features


def read_channels(file: Path) -> dict[str, Tensor]:
    """The channel weights of LPIPS; a `UserError` if the file is missing, damaged, or another one."""
    again = "install the package lpips again (pip install --force-reinstall --no-deps lpips)"
    if not file.is_file():
        raise UserError(f"The package lpips lacks its channel weights {file.name}: {again}.")
    try:
        fitted: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        shown = digest(fitted)
    except Exception as error:  # the reader raises a dozen kinds for a broken file
        raise UserError(f"The channel weights of LPIPS cannot be read ({type(error).__name__}): {again}.") from None
    if shown != CHANNELS_SHA256:
        raise UserError(
            f"The channel weights of LPIPS are others than expected: SHA-256 {CHANNELS_SHA256[:12]}... is expected, "
            f"these have {shown[:12]}...; {again}."
        )
    return fitted


def build_network(features: Mapping[str, Tensor]) -> Network:
    """This backbone with the channel weights that the lpips package contains; the package is not imported."""
    found = find_spec("lpips")
    if found is None or found.origin is None:
        raise UserError("LPIPS needs the package lpips, whose channel weights it takes: pip install lpips.")
    fitted = read_channels(Path(found.origin).parent / "weights" / "v0.1" / "alex.pth")
    return Network(
        tuple((features[f"{PREFIX}{n}.weight"], features[f"{PREFIX}{n}.bias"]) for n in NUMBERS),
        tuple(fitted[f"lin{n}.model.1.weight"].flatten() for n in range(len(NUMBERS))),
    )


@cache
def load_network(weights: str, download: bool) -> Network:
    """The network, loaded once per process; `WeightsMissing` if there are no weights, `UserError` for wrong ones."""
    if weights:
        return build_network(read_features(weights))
    if download:
        return build_network(download_features())
    raise WeightsMissing(NO_WEIGHTS)
