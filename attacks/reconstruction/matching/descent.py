"""The descent of the pixel attacks: signed Adam on matching cost and total variation; the best iterate is kept.

If the cost changes in each iteration (a random part of it is used), the last iterate is kept instead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.attacks.reconstruction.matching.gradients import SignedAdam, Slopes, total_variation

#: time kept in reserve before a deadline, in iterations, for the last costs and for returning the answer
RESERVE = 3


@dataclass
class Best:
    """The best candidates so far (P, M, C, H, W) by the objective (P,), their costs (P,), and the iterations done."""

    images: Tensor
    objective: Tensor
    costs: Tensor
    iterations: int = 0

    def offer(self, images: Tensor, objective: Tensor, costs: Tensor, *, last: bool = False) -> None:
        """Keep each candidate that improves on its best (`last`: every finite one); NaN is never kept."""
        better = objective.isfinite() if last else objective < self.objective
        self.objective = torch.where(better, objective, self.objective)
        self.costs = torch.where(better, costs, self.costs)
        self.images = torch.where(better.view(-1, 1, 1, 1, 1), images, self.images)

    def of_restarts(self, restarts: int) -> tuple[Tensor, Tensor]:
        """The restart with the smallest cost for each problem: images (P, M, C, H, W) and costs (P,)."""
        costs = self.costs.view(restarts, -1)
        winner = costs.argmin(0)
        every = torch.arange(len(winner), device=winner.device)
        images = self.images.view(restarts, -1, *self.images.shape[1:])
        return images[winner, every].cpu(), costs[winner, every].cpu()


@dataclass(frozen=True)
class Descent:
    """Minimises matching cost + tv * TV(x) over images in [0, 1].

    With `fall` below 1, tv is multiplied by it whenever the step decays; only iterates of the last tv then count.
    """

    iterations: int
    learning_rate: float
    tv: float
    last: bool = False
    fall: float = 1.0

    def __call__(self, knowledge: Knowledge, matcher: Slopes, x: Tensor) -> Best:
        """The best candidates (restarts * P, M, C, H, W) found from `x`, until the iterations or the time run out."""
        unknown = torch.full(x.shape[:1], torch.inf, device=x.device)
        best = Best(x.clone(), unknown, torch.ones_like(unknown))  # cost 1: nothing in common
        optimiser = SignedAdam(x, self.learning_rate, self.iterations)
        slowest, tv = 0.0, self.tv
        while best.iterations < self.iterations and knowledge.time_left() > RESERVE * slowest:
            started = time.monotonic()
            costs, direction = matcher.slopes(x)
            roughness, along = _roughness(x)
            if self.tv * self.fall**optimiser.decays != tv:  # objectives with another tv cannot be compared
                tv, best.objective = self.tv * self.fall**optimiser.decays, unknown
            best.offer(x, costs + tv * roughness, costs, last=self.last)
            x = optimiser.step(x, direction + tv * along).clamp(0, 1)
            best.iterations += 1
            slowest = max(slowest, time.monotonic() - started)
            if best.iterations % max(1, self.iterations // 10) == 0:
                knowledge.progress(f"iteration {best.iterations} of {self.iterations}")
        return best


def _roughness(x: Tensor) -> tuple[Tensor, Tensor]:
    """Total variation (P,) and its gradient in the images: signs of the differences, with either neighbour."""
    slope = torch.zeros_like(x)
    for axis in (-2, -1):
        if x.shape[axis] == 1:  # there is no neighbour
            continue
        sign = x.diff(dim=axis).sign_().mul_(x[0].numel() ** -1 * x.shape[axis] / (x.shape[axis] - 1))
        slope.narrow(axis, 1, x.shape[axis] - 1).add_(sign)
        slope.narrow(axis, 0, x.shape[axis] - 1).sub_(sign)
    return total_variation(x), slope
