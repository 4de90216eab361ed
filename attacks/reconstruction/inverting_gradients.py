"""Inverting Gradients: find the images whose gradient points the same way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import GradientMatching, Knowledge, ReconstructionAnswer, ReconstructionTask
from attacks.reconstruction._labels import recover_labels
from attacks.reconstruction._matching import Matcher, SignedAdam, starting_points, total_variation

#: iterations' worth of time that is kept back before a deadline, for the last costs and the way home
RESERVE = 3


@dataclass
class _Best:
    """The best candidates so far (P, M, C, H, W) by the objective (P,), and how many iterations were made."""

    images: Tensor
    objective: Tensor
    iterations: int = 0

    def offer(self, images: Tensor, objective: Tensor) -> None:
        """Keep each candidate that is better than its best; one that is no number never is."""
        better = objective < self.objective
        self.objective = torch.where(better, objective, self.objective)
        self.images = torch.where(better.view(-1, 1, 1, 1, 1), images, self.images)


class InvertingGradients(GradientMatching):
    """Cosine matching of the gradient with total variation, signed Adam and step decay.

    min_x  1 - <g(x), g> / (||g(x)|| ||g||)  +  tv * TV(x),   x in [0, 1]

    over all parameters together, with TV(x) = mean |dx/dh| + mean |dx/dw|; everything in image units, so that the
    data's normalisation changes neither steps nor weights. Adam on the sign of the image gradient, learning rate
    times 0.1 at 3/8, 5/8 and 7/8 of the iterations. All targets and restarts are optimised side by
    side; the best iterate by the objective is kept, the best restart by the matching cost alone. Labels
    are recovered from the last layer's gradient unless the cell gives them.
    """

    name: ClassVar[str] = "inverting-gradients"
    citation: ClassVar[str] = "Geiping et al., Inverting Gradients - How easy is it to break privacy, NeurIPS 2020"

    iterations: int = Field(1000, ge=1, le=1_000_000)
    restarts: int = Field(1, ge=1, le=64)
    # tuned on auxiliary victims, untrained models: 0.3 was the best rate throughout; the best tv differs (0.01 for digits
    # on the convnet, 0.1 for CIFAR-10 there, 0.3 for CIFAR-10 on ResNet20), so a suite had better say it
    learning_rate: float = Field(0.3, gt=0, description="in image units")
    tv: float = Field(3e-2, ge=0, description="weight of the total variation, of images in [0, 1]")

    def budget(self) -> dict[str, int]:
        """Iterations and restarts."""
        return {"iterations": self.iterations, "restarts": self.restarts}

    def work(self, problems: int) -> tuple[float, float]:
        """An iteration costs about three gradients: forward, backward, and backward through that."""
        return 3.0 * self.iterations * self.restarts * problems, 0.0

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert every problem; problems of one size share one optimisation."""
        problems = task.problems(knowledge)
        labels = [
            p.labels
            if p.labels is not None
            else recover_labels(knowledge.task, p.model, p.gradient.values, p.gradient.records)
            for p in problems
        ]
        matcher = Matcher(
            knowledge.task,
            problems,
            torch.stack(labels),
            self.restarts,
            knowledge.device,
            self.transforms(knowledge, problems),
        )
        best = self._descend(knowledge, matcher, starting_points(knowledge, problems, self.restarts))
        images, costs = self._pick(matcher, best.images)
        flags = []
        if any(not any(bool(g.any()) for g in p.gradient.values.values()) for p in problems):
            flags.append("gradient all zero")
        if best.iterations < self.iterations:
            flags.append(f"stopped at its time limit after {best.iterations} of {self.iterations} iterations")
        if not float(costs.median()) <= 0.5:
            flags.append("not converged: the median matching cost is above 0.5")
        return ReconstructionAnswer(tuple(images), tuple(flags), {"matching_cost": float(costs.mean())})

    def _descend(self, knowledge: Knowledge, matcher: Matcher, x: Tensor) -> _Best:
        """The best candidates (restarts * P, M, C, H, W) on the way from `x`, until the iterations or the time end."""
        best = _Best(x.clone(), torch.full(x.shape[:1], torch.inf, device=x.device))
        optimiser = SignedAdam(x, self.learning_rate, self.iterations)
        slowest = 0.0
        while best.iterations < self.iterations and knowledge.time_left() > RESERVE * slowest:
            started = time.monotonic()
            costs, direction = matcher.slopes(x)
            roughness, along = _roughness(x)
            best.offer(x, costs + self.tv * roughness)
            x = optimiser.step(x, direction + self.tv * along).clamp(0, 1)
            best.iterations += 1
            slowest = max(slowest, time.monotonic() - started)
            if best.iterations % max(1, self.iterations // 10) == 0:
                knowledge.progress(f"iteration {best.iterations} of {self.iterations}")
        return best

    def _pick(self, matcher: Matcher, images: Tensor) -> tuple[Tensor, Tensor]:
        """Of the restarts (restarts * P, ...) the one with the least cost: images (P, ...) and costs (P,)."""
        costs = matcher.slopes(images)[0].view(self.restarts, -1)
        winner = costs.argmin(0)
        every = torch.arange(len(winner), device=winner.device)
        return images.view(self.restarts, -1, *images.shape[1:])[winner, every].cpu(), costs[winner, every].cpu()


def _roughness(x: Tensor) -> tuple[Tensor, Tensor]:
    """Total variation (P,) and its gradient in the images."""
    x = x.detach().requires_grad_()
    value = total_variation(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), slope
