"""Which reconstruction belongs to which original: attacks return a batch in any order.

This is not a metric: the harness matches once, and all metrics score the same pairs.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakboard.metrics.building_blocks.images import check_images, check_original, clamped, sanitise

__all__ = ["match", "pairwise_mse"]


def pairwise_mse(reconstruction: Tensor, original: Tensor) -> Tensor:
    """Mean squared error of clamped images, for each original (N rows) and each reconstruction (M columns)."""
    left, right = clamped(original).flatten(1), clamped(reconstruction).flatten(1)
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab: no (N, M, pixels) tensor; in double its rounding is far below any pixel step
    squares = left.square().sum(1)[:, None] + right.square().sum(1)[None, :]
    return (squares - 2 * left @ right.T).clamp(min=0) / left.shape[1]


def match(reconstruction: Tensor, original: Tensor) -> Tensor:
    """The order for which row i of `reconstruction[order]` belongs to row i of `original`.

    It is the one-to-one assignment that minimises the sum over i of MSE(clamp(reconstruction[order[i]]), original[i])
    (Hungarian algorithm, Kuhn 1955). There may be more reconstructions than originals (an aggregate of K clients, of
    which only the victim's images are scored); the rest stays unmatched. Non-finite pixels count as mid-grey
    (`sanitise`), so that matching never fails.

    Shapes: reconstruction (M, C, H, W) with M >= N, original (N, C, H, W) in [0, 1]; returns int64 (N,).

    >>> original = torch.tensor([0.0, 0.5, 1.0]).reshape(3, 1, 1, 1)
    >>> match(original[[2, 0, 1]], original).tolist()
    [1, 2, 0]
    """
    check_images(reconstruction, "reconstruction")
    check_original(original)
    if reconstruction.shape[1:] != original.shape[1:] or len(reconstruction) < len(original):
        raise ValueError(
            "there must be a reconstruction of the same size for each original; "
            f"given: {tuple(reconstruction.shape)} for {tuple(original.shape)}."
        )
    cost = pairwise_mse(sanitise(reconstruction)[0], original)
    _, columns = linear_sum_assignment(cost.cpu().numpy())
    return torch.as_tensor(columns, dtype=torch.int64)
