"""Inverting Gradients: find the images whose gradient points the same way."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import Inversion, Knowledge, ReconstructionAnswer, ReconstructionAttack, ReconstructionTask
from attacks.reconstruction._labels import recover_labels
from attacks.reconstruction._matching import Matcher, SignedAdam, total_variation


class InvertingGradients(ReconstructionAttack):
    """Cosine matching of the gradient with total variation, signed Adam and step decay.

    min_x  1 - <g(x), g> / (||g(x)|| ||g||)  +  tv * TV(x),   x in [0, 1]

    over all parameters together, with TV(x) = mean |dx/dh| + mean |dx/dw| in the model's
    normalised space; Adam on the sign of the image gradient, learning rate times 0.1 at 3/8, 5/8 and 7/8 of the
    iterations. All targets and restarts are optimised side by side; the best iterate by the
    objective is kept, the best restart by the matching cost alone. Labels are recovered from the
    last layer's gradient unless the cell gives them.
    """

    name: ClassVar[str] = "inverting-gradients"
    citation: ClassVar[str] = "Geiping et al., Inverting Gradients - How easy is it to break privacy, NeurIPS 2020"

    iterations: int = Field(1000, ge=1, le=1_000_000)
    restarts: int = Field(1, ge=1, le=64)
    # both chosen by benchmarks/tune_inversion.py on auxiliary victims
    learning_rate: float = Field(0.3, gt=0, description="in the model's normalised space")
    tv: float = Field(1e-2, ge=0, description="weight of the total variation")

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
        images, costs = self._invert(knowledge, problems, labels)
        flags = []
        if any(not any(bool(g.any()) for g in p.gradient.values.values()) for p in problems):
            flags.append("gradient all zero")
        if float(costs.median()) > 0.5:
            flags.append("not converged: the median matching cost is above 0.5")
        return ReconstructionAnswer(tuple(images), tuple(flags), {"matching_cost": float(costs.mean())})

    def _invert(
        self, knowledge: Knowledge, problems: tuple[Inversion, ...], labels: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Images (P, M, C, H, W) and matching costs (P,) of P problems with M records each."""
        task, public, device = knowledge.task, knowledge.public, knowledge.device
        matcher = Matcher(task, problems, torch.stack(labels), self.restarts, device)
        mean = torch.tensor(public.mean, device=device).view(-1, 1, 1)
        std = torch.tensor(public.std, device=device).view(-1, 1, 1)
        low, high = (0 - mean) / std, (1 - mean) / std
        shape = (self.restarts * len(problems), problems[0].gradient.records, *public.shape)
        x = torch.randn(shape, generator=knowledge.generator()).to(device)
        best, best_objective = x.clone(), torch.full(shape[:1], torch.inf, device=device)
        optimiser = SignedAdam(x, self.learning_rate, self.iterations)
        for iteration in range(self.iterations):
            x.requires_grad_()
            objective = matcher.costs(x * std + mean) + self.tv * total_variation(x)
            (direction,) = torch.autograd.grad(objective.sum(), x)
            x = x.detach()
            improved = objective.detach() < best_objective
            best_objective = torch.where(improved, objective.detach(), best_objective)
            best = torch.where(improved.view(-1, 1, 1, 1, 1), x, best)
            x = torch.minimum(torch.maximum(optimiser.step(x, direction), low), high)
            if (iteration + 1) % max(1, self.iterations // 10) == 0:
                knowledge.progress(f"iteration {iteration + 1} of {self.iterations}")
        images = best * std + mean
        costs = matcher.costs(images).detach().view(self.restarts, len(problems))
        winner = costs.argmin(0)
        picked = images.view(self.restarts, len(problems), *shape[1:])[winner, torch.arange(len(problems))]
        return picked.cpu(), costs.min(0).values.cpu()
