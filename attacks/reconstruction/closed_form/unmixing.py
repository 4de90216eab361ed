"""Blind source separation: images from mixtures of them, because the edges of images are not Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leakboard.attacks.reconstruction.closed_form.disaggregation import Factors

#: a rotation that moves less than this has converged
CONVERGED = 1e-9
#: a backward signal below this share of a record's largest counts as the zero of a ReLU
SMALL = 0.1


def differences(rows: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Differences of neighbouring pixels (N, d'), both directions, of flat images (N, C * H * W).

    >>> differences(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), (1, 2, 2))
    tensor([[1., 4., 3., 6.]])
    """
    images = rows.view(-1, *shape)
    return torch.cat([images.diff(dim=-1).flatten(1), images.diff(dim=-2).flatten(1)], dim=1)


def whitened(matrix: Tensor, sources: int) -> tuple[Tensor, Tensor]:
    """A matrix (m, n) as mixing (m, sources) @ white (sources, n), with white @ white^T / n = I."""
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    scale = math.sqrt(matrix.shape[1])
    return left[:, :sources] * (sizes[:sources] / scale), right[:sources] * scale


def rotated(
    white: Tensor, iterations: int, random: torch.Generator, stop: Callable[[], bool] = lambda: False
) -> tuple[Tensor, int]:
    """The rotation W (B, B) for which the rows of W @ white are least Gaussian, and the steps done.

    FastICA with the contrast log cosh, all rows together (Hyvarinen 1999): W <- E[tanh(s) z^T] - E[1 - tanh(s)^2] W for
    s = W z, then the nearest rotation.
    """
    count = len(white)
    rotation = torch.linalg.qr(torch.randn(count, count, generator=random, dtype=white.dtype)).Q
    for step in range(iterations):
        if stop():
            return rotation, step
        bent = torch.tanh(rotation @ white)
        left, _, right = torch.linalg.svd(
            bent @ white.T / white.shape[1] - (1 - bent.square()).mean(1, keepdim=True) * rotation
        )
        before, rotation = rotation, left @ right
        if float((1 - (rotation * before).sum(1).abs()).max()) < CONVERGED:
            return rotation, step + 1
    return rotation, iterations


def cocktail(
    matrix: Tensor,
    records: int,
    shape: tuple[int, int, int],
    iterations: int,
    random: torch.Generator,
    stop: Callable[[], bool] = lambda: False,
) -> Factors:
    """Factors G = sparse @ rows of a first layer's gradient (m, C * H * W), up to sign, scale and order.

    Differences of pixels are mixed as the pixels are. They are nearly uncorrelated between images, which whitening
    assumes, and far from Gaussian; pixels are neither. Small entries of `sparse` (m, B) are set to 0.
    """
    mixing, white = whitened(differences(matrix, shape), records)
    rotation, _ = rotated(white, iterations, random, stop)
    mixing = mixing @ rotation.T
    rows = torch.linalg.pinv(mixing) @ matrix
    sparse = torch.where(mixing.abs() < SMALL * mixing.abs().amax(0), 0.0, mixing)
    return Factors(sparse, rows)
