"""Gradient matching: costs of candidate images against observed gradients, and the optimiser of the pixel attacks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, vmap

from attacks.base import Inversion
from federation.payload import Parameters
from federation.task import Task


class Matcher:
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


class SignedAdam:
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


def total_variation(x: Tensor) -> Tensor:
    """TV (P,) of candidates (P, M, C, H, W): mean absolute difference of neighbours, both directions."""
    vertical = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
    horizontal = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
    return vertical + horizontal
