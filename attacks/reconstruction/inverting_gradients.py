"""Inverting Gradients: find the images whose gradient points the same way."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad, vmap

from attacks.base import Inversion, Knowledge, ReconstructionAnswer, ReconstructionAttack, ReconstructionTask
from attacks.reconstruction._labels import recover_labels
from federation.payload import Parameters
from federation.task import Task


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
        matcher = _Matcher(task, problems, torch.stack(labels), self.restarts, device)
        mean = torch.tensor(public.mean, device=device).view(-1, 1, 1)
        std = torch.tensor(public.std, device=device).view(-1, 1, 1)
        low, high = (0 - mean) / std, (1 - mean) / std
        shape = (self.restarts * len(problems), problems[0].gradient.records, *public.shape)
        x = torch.randn(shape, generator=knowledge.generator()).to(device)
        best, best_objective = x.clone(), torch.full(shape[:1], torch.inf, device=device)
        optimiser = _SignedAdam(x, self.learning_rate, self.iterations)
        for iteration in range(self.iterations):
            x.requires_grad_()
            objective = matcher.costs(x * std + mean) + self.tv * _total_variation(x)
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


class _Matcher:
    """Cosine costs of candidate images against the observed gradients, all problems at once."""

    def __init__(self, task: Task, problems: tuple[Inversion, ...], labels: Tensor, restarts: int, device: str) -> None:
        self.task = task
        soft = torch.nn.functional.one_hot(labels, task.public.classes).float()
        self.labels = soft.to(device).repeat(restarts, 1, 1)  # soft labels: vmap has no one_hot
        self.targets = [
            torch.stack([p.gradient.values[name].float().flatten() for p in problems]).to(device).repeat(restarts, 1)
            for name in task.parameter_names
        ]
        self.target_norm = torch.stack([t.square().sum(1) for t in self.targets]).sum(0).sqrt()
        first = problems[0].model
        self.shared = all(p.model is first or all(torch.equal(p.model[n], first[n]) for n in first) for p in problems)
        models = [first] if self.shared else [p.model for p in problems] * restarts
        stacked = {name: torch.stack([m[name].float() for m in models]).to(device) for name in first}
        self.models: Parameters = {n: t[0] for n, t in stacked.items()} if self.shared else stacked

    def costs(self, images: Tensor) -> Tensor:
        """1 - cosine (P,) for candidate images (P, M, C, H, W) in [0, 1]; differentiable in the images."""
        gradients = self._gradients(images)
        dot = torch.stack([(g.flatten(1) * t).sum(1) for g, t in zip(gradients, self.targets, strict=True)]).sum(0)
        norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        return 1 - dot / (norm * self.target_norm).clamp(min=1e-12)

    def _gradients(self, images: Tensor) -> list[Tensor]:
        """Per-problem parameter gradients, each (P, *shape of the parameter)."""
        if self.task.buffer_names:  # batch norm writes its statistics in place, which vmap does not allow
            rows = [self._one(self._model(i), x, y) for i, (x, y) in enumerate(zip(images, self.labels, strict=True))]
            return [torch.stack(column) for column in zip(*rows, strict=True)]
        weights = {name: self.models[name] for name in self.task.parameter_names}
        batched = vmap(grad(self._loss), in_dims=(None if self.shared else 0, 0, 0))
        found: Parameters = batched(weights, images, self.labels)
        return [found[name] for name in self.task.parameter_names]

    def _loss(self, weights: Parameters, images: Tensor, labels: Tensor) -> Tensor:
        return self.task.loss(self.task.logits(weights, images, train=True), labels)

    def _model(self, index: int) -> Parameters:
        return self.models if self.shared else {name: t[index] for name, t in self.models.items()}

    def _one(self, model: Parameters, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        weights = {name: model[name].detach().requires_grad_() for name in self.task.parameter_names}
        buffers = {name: model[name].clone() for name in self.task.buffer_names}
        loss = self._loss({**weights, **buffers}, images, labels)
        return torch.autograd.grad(loss, list(weights.values()), create_graph=True)


class _SignedAdam:
    """Adam (Kingma and Ba 2015) on the sign of the gradient, decayed by 0.1 at 3/8, 5/8 and 7/8 of the steps."""

    def __init__(self, x: Tensor, learning_rate: float, steps: int) -> None:
        self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)
        self.learning_rate, self.steps, self.taken = learning_rate, steps, 0

    def step(self, x: Tensor, direction: Tensor) -> Tensor:
        """The next point."""
        decay = 0.1 ** sum(self.taken >= self.steps * part / 8 for part in (3, 5, 7))
        self.taken += 1
        sign = direction.sign()
        self.first = 0.9 * self.first + 0.1 * sign
        self.second = 0.999 * self.second + 0.001 * sign.square()
        mean = self.first / (1 - 0.9**self.taken)
        scale = (self.second / (1 - 0.999**self.taken)).sqrt() + 1e-8
        return x - self.learning_rate * decay * mean / scale


def _total_variation(x: Tensor) -> Tensor:
    """TV (P,) of candidates (P, M, C, H, W): mean absolute difference of neighbours, both directions."""
    vertical = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
    horizontal = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
    return vertical + horizontal
