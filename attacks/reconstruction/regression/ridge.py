"""Ridge regression with more features than examples, and what it leaves unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: rows of a block of the Gram matrix
BLOCK = 512


def gram_of(features: Tensor) -> Tensor:
    """K = Phi Phi^T (N, N) of features (N, d); it is symmetric, so only the lower blocks are multiplied."""
    gram = features.new_zeros(len(features), len(features))
    for start in range(0, len(features), BLOCK):
        stop = start + BLOCK
        gram[start:stop, :stop] = features[start:stop] @ features[:stop].T
    return gram.tril().add_(gram.tril(-1).T)


@dataclass(frozen=True)
class Scaling:
    """Features as deviations from their mean, divided by their size and by the square root of their tensor's width."""

    mean: Tensor
    factor: Tensor

    @staticmethod
    def of(features: Tensor, widths: Sequence[int]) -> Scaling:
        """From features (N, d), whose columns belong to tensors of these widths; every tensor then counts alike."""
        width = torch.cat([torch.full((w,), float(w)) for w in widths])
        deviation = features.std(0)
        factor = torch.where(deviation > 0, 1 / (deviation.clamp(min=1e-30) * width.sqrt()), 0.0)
        return Scaling(features.mean(0), factor)

    def __call__(self, features: Tensor) -> Tensor:
        """Scaled features (N, d)."""
        return (features - self.mean).mul_(self.factor)  # in place: there may be gigabytes of them


@dataclass(frozen=True)
class Ridge:
    """y = mean + A phi, fitted to N examples by min ||Y - mean - A Phi||^2 + penalty ||A||^2 in its dual form.

    With the Gram matrix K = Phi Phi^T (N, N) and C = (K + penalty I)^-1, the prediction is mean + k^T C Y. The residual
    of example i if it is left out is (C Y)_i / C_ii (Allen 1974), so the penalty is chosen by the leave-one-out error
    without fitting again. `residuals` (N, targets) are these, a model of what a prediction lacks. `explained` is
    1 - their size over that of the targets' deviations: at most 1, and about 0 if the features tell nothing.
    """

    features: Tensor
    mean: Tensor
    weights: Tensor
    penalty: float
    residuals: Tensor
    explained: float

    @staticmethod
    def fit(features: Tensor, targets: Tensor, penalties: Sequence[float]) -> Ridge:
        """From features (N, d) and targets (N, t); penalties are in units of the mean diagonal value of K."""
        mean = targets.mean(0)
        gram = gram_of(features).double()
        diagonal = gram.diagonal().clone()
        level = float(diagonal.mean()) or 1.0
        spread = float((targets - mean).square().mean()) or 1.0
        best: Ridge | None = None
        for penalty in penalties:
            gram.diagonal().copy_(diagonal + penalty * level)
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram)).float()
            weights = inverse @ (targets - mean)
            residuals = weights / inverse.diagonal()[:, None]
            explained = 1 - float(residuals.square().mean()) / spread
            if best is None or explained > best.explained:
                best = Ridge(features, mean, weights, penalty, residuals, explained)
        assert best is not None
        return best

    def predict(self, features: Tensor) -> Tensor:
        """Targets (M, t) of features (M, d)."""
        return self.mean + (features @ self.features.T) @ self.weights
