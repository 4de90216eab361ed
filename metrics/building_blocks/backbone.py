"""The AlexNet backbone of LPIPS: read from a file, verified, and cached for the process.

LPIPS with another backbone is another metric under the same name, so the weights are pinned by a digest.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import safetensors.torch
import torch
from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.core.vision import lpips, torchvision
from leakboard.metrics.base import ReconstructionMetric

#: SHA-256 of torchvision's AlexNet_Weights.IMAGENET1K_V1, `features.*` only, as `digest` computes it
FEATURES_SHA256 = "44534cd66e37ce9a6258bb5e845ef8cd47c33aa68024441c7e616d63c0c1c41a"
PREFIX = "features."
NO_WEIGHTS = "there are no LPIPS weights: give a file with --lpips-weights, or allow --download"


class WeightsMissing(Exception):
    """The weights are not available; the message becomes the reason of the `Score`."""


class Network(Protocol):
    """The part of `lpips.LPIPS` that is used."""

    net: Any
    lins: Any

    def __call__(self, in0: Tensor, in1: Tensor) -> Tensor:
        """Distance of images in [-1, 1]: (N, 1, 1, 1)."""

    def scaling_layer(self, images: Tensor) -> Tensor:
        """Normalisation of the backbone."""


class LpipsMetric(ReconstructionMetric):
    """Base of the metrics that need the backbone; its parameters give the location of the weights."""

    location_fields: ClassVar[tuple[str, ...]] = ("weights", "download")

    weights: str = Field(default="", description="File with AlexNet's features.* weights (.pth or .safetensors)")
    download: bool = Field(default=False, description="Whether torchvision may download the weights")


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
        shown = digest(features)
    except Exception as error:  # the readers raise a dozen kinds for a broken file, and the user has one mistake
        raise UserError(
            f"The LPIPS weights in {path} cannot be read ({type(error).__name__}): "
            "the file must be a state dict of AlexNet, .pth or .safetensors."
        ) from None
    if shown != FEATURES_SHA256:
        raise UserError(
            f"The LPIPS weights in {path} are not torchvision's AlexNet (IMAGENET1K_V1): its features.* have "
            f"SHA-256 {FEATURES_SHA256[:12]}..., these have {shown[:12]}...."
        )
    return features


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


def build_network(features: Mapping[str, Tensor]) -> Network:
    """`lpips.LPIPS` with its own linear layers and this backbone; nothing is downloaded or printed."""
    # the package first makes random layers: the caller's random state must not move, nor its log fill
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = lpips().LPIPS(net="alex", version="0.1", pnet_rand=True, verbose=False)
    wanted = network.net.state_dict()  # slice1.0.weight is features.0.weight
    network.net.load_state_dict({name: features[PREFIX + name.split(".", 1)[1]] for name in wanted})
    ready: Network = network.eval().requires_grad_(False)
    return ready


@cache
def load_network(weights: str, download: bool) -> Network:
    """The network, loaded once per process; `WeightsMissing` if there are no weights, `UserError` for wrong ones."""
    if weights:
        return build_network(read_features(weights))
    if download:
        return build_network(download_features())
    raise WeightsMissing(NO_WEIGHTS)
