"""What a trial shows, together with what it would have shown without noise in each world."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: rounding of float32, squared: a distance below this share of the distance between the worlds counts as 0
ROUNDING = 1e-12


@dataclass(frozen=True)
class Evidence:
    """n observed vectors (n, d), what they would be without noise in each world, and the distribution of their noise.

    Value i of the vectors has covariance C_kl s_ki s_li up to a common factor, with `scale` s (n, d) and `correlation`
    C (n, n). The first vector is the one that contains the victim's batch.
    """

    seen: Tensor
    zero: Tensor
    one: Tensor
    scale: Tensor
    correlation: Tensor

    @classmethod
    def alone(cls, seen: Tensor, zero: Tensor, one: Tensor) -> Evidence:
        """One vector (d,) with noise of the same size on every value."""
        one_law = torch.ones(1, 1, dtype=torch.float64)
        return cls(seen[None], zero[None], one[None], torch.ones_like(seen)[None], one_law)

    def ratio(self) -> float:
        """log p(seen | world 1) / p(seen | world 0) for Gaussian noise: nd/2 log(D_0 / D_1).

        D_b = sum_i e_i^T C^-1 e_i with e = (seen - world_b) / s, the generalised least squares of world b. The common
        factor is unknown; D_b / nd is its maximum-likelihood estimate in world b.
        """
        floor = ROUNDING * self._distance(self.one - self.zero) + 1e-300
        first, second = (self._distance(self.seen - world) + floor for world in (self.zero, self.one))
        return float(0.5 * self.seen.numel() * (first.log() - second.log()))

    def _distance(self, difference: Tensor) -> Tensor:
        """sum_i e_i^T C^-1 e_i."""
        lower = torch.linalg.cholesky(self.correlation)
        white: Tensor = torch.linalg.solve_triangular(lower, difference / self.scale, upper=False)
        return white.square().sum()

    def overhang(self) -> float:
        """How much larger the victim's noise would be in world 0 than in world 1; for noise with bounded support."""
        first, second = (((self.seen - w) / self.scale)[0].abs().max() for w in (self.zero, self.one))
        return float(first - second)


def flat(values: dict[str, Tensor]) -> Tensor:
    """All values in one vector, ordered by name, in float64."""
    return torch.cat([values[name].double().flatten() for name in sorted(values)])


def is_numbers(part: object) -> bool:
    """Whether a part of a message is a dict of real tensors (not ciphertexts, masked words or counts)."""
    return isinstance(part, dict) and bool(part) and all(_real(value) for value in part.values())


def _real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
