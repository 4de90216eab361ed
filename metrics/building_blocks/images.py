"""What all image metrics share: checks of the images, one rule for broken pixels, and the computation of a `Score`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from leakboard.metrics.base import ReconstructionTruth, Score

MID_GREY = 0.5
NO_IMAGES = "there are no images to score"
#: how far over [0, 1] an original may be by rounding; more means that it is in another space (normalised, 0..255)
ROUNDING = 1e-4


def sanitise(reconstruction: Tensor) -> tuple[Tensor, int]:
    """Replace non-finite pixels by mid-grey; also returns the number of images that had any.

    An attack that diverged is scored like one that knows nothing about those pixels. Dropping the image would flatter
    the attack's mean, and NaN would spoil the whole batch. Finite pixels are not changed.

    >>> images, bad = sanitise(torch.tensor([[[[0.25, float("nan")]]], [[[1.0, 2.0]]]]))
    >>> images.flatten().tolist(), bad
    ([0.25, 0.5, 1.0, 2.0], 1)
    """
    broken = ~torch.isfinite(reconstruction)
    if not broken.any():
        return reconstruction, 0
    return reconstruction.masked_fill(broken, MID_GREY), int(broken.flatten(1).any(dim=1).sum())


def check_images(images: Tensor, what: str) -> None:
    """Refuse anything but a batch (N, C, H, W) of floating-point images."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"{what} must be floating point of shape (N, C, H, W); given: {images.dtype}, {tuple(images.shape)}."
        )


def check_original(original: Tensor, what: str = "original") -> None:
    """Refuse originals that are not images in [0, 1]: scoring in another space gives different decibels."""
    check_images(original, what)
    inside = (original >= -ROUNDING) & (original <= 1 + ROUNDING)  # False for NaN as well
    if not inside.all():
        raise ValueError(f"{what} must lie in [0, 1], de-normalised; it has values outside or not finite.")


def check_pair(reconstruction: Tensor, original: Tensor) -> None:
    """Refuse a pair whose rows cannot belong together."""
    check_images(reconstruction, "reconstruction")
    check_original(original)
    if reconstruction.shape != original.shape:
        raise ValueError(
            f"reconstruction and original must have one shape; given: {tuple(reconstruction.shape)} "
            f"and {tuple(original.shape)}."
        )


def clamped(images: Tensor) -> Tensor:
    """The images as they would be displayed, in [0, 1]; double precision, so that sums over pixels stay accurate."""
    return images.detach().double().clamp(0, 1)


def squared_error(reconstruction: Tensor, original: Tensor) -> Tensor:
    """Mean squared error per image (N,), of clamped images."""
    check_pair(reconstruction, original)
    return (clamped(reconstruction) - clamped(original)).square().mean(dim=(1, 2, 3))


def mean_score(values: Tensor, details: Mapping[str, float] | None = None) -> Score:
    """The score of one value per image: their mean; None with a reason if that is not finite."""
    details = dict(details or {})
    if len(values) == 0:
        return Score(None, reason=NO_IMAGES, details=details)
    if not torch.isfinite(values).all():
        return Score(None, reason="a value is not finite: the reconstruction or its logits overflow", details=details)
    return Score(float(values.double().mean()), tuple(values.double().tolist()), details=details)


def score_images(function: Callable[[Tensor, Tensor], Tensor], truth: ReconstructionTruth) -> Score:
    """Score matched images by a function (reconstruction, original) -> (N,), with broken pixels made grey first."""
    if len(truth.original) == 0:
        return Score(None, reason=NO_IMAGES)
    reconstruction, bad = sanitise(truth.reconstruction)
    return mean_score(function(reconstruction, truth.original), {"non_finite_images": float(bad)})
