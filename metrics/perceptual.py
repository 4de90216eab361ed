"""LPIPS: the distance of deep features, which agrees with human judgement better than pixels do."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from leakboard.metrics.base import Aggregate, ReconstructionTruth, Score
from leakboard.metrics.building_blocks.backbone import LpipsMetric, Network, WeightsMissing, load_network
from leakboard.metrics.building_blocks.images import check_images, check_pair, score_images

SMALLEST = 64  # under 31 pixels AlexNet's second pooling has nothing left
CHUNK = 64  # images at once, to bound the memory


def prepare(images: Tensor) -> Tensor:
    """Images in the form that LPIPS takes: three channels, sides of at least 64 pixels (bilinear), in [-1, 1].

    >>> tuple(prepare(torch.zeros(2, 1, 32, 32)).shape)
    (2, 3, 64, 64)
    """
    check_images(images, "images")
    if images.shape[1] not in (1, 3):
        raise ValueError(f"LPIPS takes grey or RGB images; given: {images.shape[1]} channels.")
    shown = images.detach().float().clamp(0, 1)
    shown = shown.expand(-1, 3, -1, -1)
    height, width = shown.shape[-2:]
    if min(height, width) < SMALLEST:
        size = (max(height, SMALLEST), max(width, SMALLEST))
        shown = interpolate(shown, size=size, mode="bilinear", align_corners=False)
    return shown * 2 - 1


@torch.no_grad()
def lpips_distance(reconstruction: Tensor, original: Tensor, network: Network) -> Tensor:
    """LPIPS (AlexNet, v0.1) of each image.

    LPIPS_i = sum over layers l of mean over positions of sum over channels c of w_l,c (f_l,c(x) - f_l,c(y))^2

    with f the features of each layer, of unit length at each position, and w >= 0 fitted to human judgements.
    Images are clamped to [0, 1], grey is repeated to RGB, sides below 64 pixels become 64 (bilinear), then
    [0, 1] becomes [-1, 1].

    Shapes: both (N, 1 or 3, H, W), matched; returns float64 (N,). The network comes from `backbone.load_network`.
    Citation: Zhang, Isola, Efros, Shechtman and Wang 2018.

    Without the true weights there is no number, and never one from other weights:

    >>> image = torch.zeros(1, 3, 32, 32)
    >>> Lpips().score(ReconstructionTruth(image, image, (0.5,) * 3, (0.25,) * 3)).reason
    'there are no LPIPS weights: `leakboard lpips --download` fetches them once, for all runs'
    """
    check_pair(reconstruction, original)
    pairs = zip(torch.split(reconstruction, CHUNK), torch.split(original, CHUNK), strict=True)
    return torch.cat([_distance(prepare(ours), prepare(true), network) for ours, true in pairs])


def _distance(left: Tensor, right: Tensor, network: Network) -> Tensor:
    """LPIPS (N,) of prepared images."""
    total = torch.zeros(len(left), dtype=torch.float64)
    layers = zip(network.layers(left), network.layers(right), network.channel_weights, strict=True)
    for ours, true, weights in layers:
        total += ((ours - true).square() * weights.view(-1, 1, 1)).sum(1).mean(dim=(1, 2)).double()
    return total


class Lpips(LpipsMetric):
    """LPIPS with the AlexNet backbone per image, then the mean; None without its true weights.

    Definition: `metrics.perceptual.lpips_distance`.
    """

    name: ClassVar[str] = "lpips"
    title: ClassVar[str] = "LPIPS"
    aggregate: ClassVar[Aggregate] = "mean"
    citation: ClassVar[str] = "Zhang et al., The Unreasonable Effectiveness of Deep Features, CVPR 2018"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Mean of the images' LPIPS; None with the reason if the weights are not available."""
        try:
            network = load_network(self.weights, self.download)
        except WeightsMissing as missing:
            return Score(None, reason=str(missing))
        return score_images(lambda ours, true: lpips_distance(ours, true, network), truth)
