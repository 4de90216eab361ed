"""Identification: whether a reconstruction distinguishes its original from other images."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakboard.metrics.base import Aggregate, ReconstructionMetric, ReconstructionTruth, Score
from leakboard.metrics.building_blocks.backbone import LpipsMetric, Network, WeightsMissing, load_network
from leakboard.metrics.building_blocks.decoy_features import embed, sketch_of
from leakboard.metrics.building_blocks.images import check_original, check_pair, clamped, mean_score, sanitise
from leakboard.metrics.matching import pairwise_mse

NO_DECOYS = "there are no decoys to tell the original from"
#: images this close (root mean square) are the same image, computed twice; the step of 8-bit images is 4e-3
SAME_PIXEL = 1e-6


def same_image(original: Tensor, decoys: Tensor) -> Tensor:
    """Which decoys (D) are pixel by pixel the same as one of the originals (N): bool (N, D)."""
    return pairwise_mse(decoys, original) <= SAME_PIXEL**2


def strictly_nearest(own: Tensor, others: Tensor, same: Tensor) -> Tensor:
    """1 if the own distance (N,) is below all others (N, D) that are not the same image; ties count against it."""
    nearest_other = others.masked_fill(same, torch.inf).amin(dim=1)
    return (own < nearest_other).double()


def distances(left: Tensor, right: Tensor) -> Tensor:
    """L2 distances of rows (N, F) and (D, F), from differences: the formula with products would break exact ties."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def identified(reconstruction: Tensor, original: Tensor, decoys: Tensor) -> Tensor:
    """Whether each reconstruction is strictly nearest, in pixel L2, to its own original.

    hit_i = [ |r_i - x_i| < |r_i - d| for all decoys d that are not pixel-equal to x_i ]

    with r clamped to [0, 1]. The chance of a guess is 1 / (1 + decoys). A tie counts against the attack: a
    reconstruction that fits two images equally well identifies neither.

    Shapes: reconstruction and original (N, C, H, W), matched, decoys (D, C, H, W), D >= 1; returns 0/1 (N,).
    Definition: after the image identifiability precision of Yin et al. 2021, with fixed decoys.

    >>> original, decoys = torch.full((1, 1, 4, 4), 0.5), torch.rand(99, 1, 4, 4)
    >>> identified(original + 0.01, original, decoys).tolist()
    [1.0]
    """
    check_pair(reconstruction, original)
    check_original(decoys, "decoys")
    ours, true, other = clamped(reconstruction), clamped(original), clamped(decoys)
    own = distances(ours.flatten(1), true.flatten(1)).diagonal()  # the same sums as for decoys, else ties would break
    return strictly_nearest(own, distances(ours.flatten(1), other.flatten(1)), same_image(true, other))


def identified_lpips(
    reconstruction: Tensor, original: Tensor, decoys: Tensor, network: Network, kept: str = ""
) -> Tensor:
    """As `identified`, with the LPIPS distance instead of pixel L2.

    `kept` is a folder for features of decoys (`decoy_features`); it changes the time, never the result.
    """
    check_pair(reconstruction, original)
    check_original(decoys, "decoys")
    ours, true = embed(reconstruction, network), embed(original, network)
    own, same = distances(ours, true).diagonal(), same_image(original, decoys)
    nearer, doubtful = sketch_of(decoys, network, kept).compared(own, ours)
    beaten = (nearer & ~same).any(1)
    doubtful &= ~same & ~beaten[:, None]
    asked = doubtful.any(0).nonzero().squeeze(1)
    if len(asked):
        exact = distances(ours, embed(decoys[asked], network))
        beaten |= strictly_nearest(own, exact, ~doubtful[:, asked]) == 0
    return (~beaten).double()


def score_hits(hits: Tensor, original: Tensor, decoys: Tensor, bad: int) -> Score:
    """The share of hits, and the chance of a guess: the mean of 1 / (1 + remaining decoys)."""
    left = (~same_image(original, decoys)).sum(dim=1)
    chance = float((1 / (1 + left.double())).mean()) if len(left) else 1.0
    details = {"chance": chance, "decoys": float(len(decoys)), "non_finite_images": float(bad)}
    if (left == 0).any():  # without an alternative every reconstruction would be a hit
        return Score(None, reason=NO_DECOYS, details=details)
    return mean_score(hits, details)


class Identified(ReconstructionMetric):
    """Share of reconstructions whose nearest image, in pixel L2, among original and decoys is the original.

    Definition: `metrics.identified.identified`.
    """

    name: ClassVar[str] = "identified"
    aggregate: ClassVar[Aggregate] = "share"
    tolerance: ClassVar[float] = 0.15
    citation: ClassVar[str] = "Yin et al., See through Gradients, CVPR 2021"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Share of hits; None without decoys."""
        if truth.decoys is None or len(truth.decoys) == 0:
            return Score(None, reason=NO_DECOYS)
        reconstruction, bad = sanitise(truth.reconstruction)
        hits = identified(reconstruction, truth.original, truth.decoys)
        return score_hits(hits, truth.original, truth.decoys, bad)


class IdentifiedLpips(LpipsMetric):
    """Share of reconstructions whose nearest image, by LPIPS, among original and decoys is the original.

    Definition: `metrics.identified.identified_lpips`; None without the true LPIPS weights.
    """

    name: ClassVar[str] = "identified_lpips"
    title: ClassVar[str] = "identified (LPIPS)"
    aggregate: ClassVar[Aggregate] = "share"
    tolerance: ClassVar[float] = 0.15
    citation: ClassVar[str] = "Yin et al., See through Gradients, CVPR 2021; Zhang et al., CVPR 2018"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Share of hits; None without decoys or without weights."""
        if truth.decoys is None or len(truth.decoys) == 0:
            return Score(None, reason=NO_DECOYS)
        try:
            network = load_network(self.weights, self.download)
        except WeightsMissing as missing:
            return Score(None, reason=str(missing))
        reconstruction, bad = sanitise(truth.reconstruction)
        hits = identified_lpips(reconstruction, truth.original, truth.decoys, network, self.kept)
        return score_hits(hits, truth.original, truth.decoys, bad)
