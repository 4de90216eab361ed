"""Costs of candidate images against an update of local steps, one problem after another, by automatic differentiation.

The schedule is public: how many steps, at which rate, which records in which step (`Training.local_schedule`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Inversion
from leakboard.attacks.building_blocks.candidate_transform import CandidateTransform
from leakboard.attacks.reconstruction.matching.batch_statistics import statistics_misfit, watched_statistics
from leakboard.attacks.reconstruction.matching.gradients import misfits
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task


@dataclass(frozen=True)
class Simulated:
    """What a client would send for candidate images: its update, and its batch-norm statistics after training."""

    update: Parameters
    statistics: Parameters


def simulated_update(task: Task, model: Parameters, images: Tensor, labels: Tensor) -> Simulated:
    """The update w_t - w_(t+1) of images (N, C, H, W) with targets (N, classes), differentiable in the images.

    The derivative goes through all local steps. It is what `federation.local_training` computes (a test compares them).
    """
    training = task.public.training
    rate = training.local_learning_rate if training.local_learning_rate is not None else 1.0
    start = {name: model[name].detach().requires_grad_() for name in task.parameter_names}
    current, statistics = start, {name: model[name] for name in task.buffer_names}
    for chosen in training.local_schedule(len(images)):
        # fresh buffers for every step: torch writes into them, and a written tensor cannot be differentiated through
        buffers = {name: model[name].clone() for name in task.buffer_names}
        with watched_statistics(task, statistics) as found:
            logits = task.logits({**current, **buffers}, task.arranged(images[chosen]), train=True)
        slopes = torch.autograd.grad(
            task.loss(logits, labels[chosen]), list(current.values()), create_graph=True, materialize_grads=True
        )
        current = {name: value - rate * slope for (name, value), slope in zip(current.items(), slopes, strict=True)}
        statistics = {**statistics, **found}
    moved = {name: start[name] - value for name, value in current.items()}
    return Simulated(moved, {name: value for name, value in statistics.items() if value.requires_grad})


class LocalMatcher(ABC):
    """1 - cosine between an update and what candidate images would give, plus a term for the statistics.

    A mean over clients is compared with the mean of what each client's share of the candidates gives, in their order.
    `imitations` are those of `GradientMatching`.
    """

    def __init__(
        self,
        task: Task,
        problems: tuple[Inversion, ...],
        labels: Tensor,
        restarts: int,
        device: str,
        imitations: tuple[CandidateTransform | None, ...] | None = None,
        statistics: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.task, self.weight, self.problems = task, statistics, problems * restarts
        soft = torch.nn.functional.one_hot(labels, task.public.classes).to(device, dtype)
        self.labels = soft.repeat(restarts, 1, 1)
        self.models = [_cast(problem.model, device, dtype) for problem in problems] * restarts
        self.targets = [_cast(problem.gradient.values, device, dtype) for problem in problems] * restarts
        self.imitations = (imitations or (None,) * len(problems)) * restarts

    @abstractmethod
    def simulate(self, index: int, images: Tensor, labels: Tensor) -> Simulated:
        """What one client with these images would send in problem `index`, in units of a gradient."""

    def cost(self, index: int, images: Tensor) -> Tensor:
        """The cost of candidates (M, C, H, W) for one problem; differentiable."""
        problem, imitation = self.problems[index], self.imitations[index]
        parts = imitation.parts if imitation is not None else problem.gradient.clients
        pieces = zip(images.chunk(parts), self.labels[index].chunk(parts), strict=True)
        sent = [self.simulate(index, x, y) for x, y in pieces]
        stacked = {name: torch.stack([one.update[name] for one in sent]) for name in self.task.parameter_names}
        made = imitation(stacked) if imitation is not None else {n: v.mean(0, keepdim=True) for n, v in stacked.items()}
        seen = [self.targets[index][name].reshape(1, -1) for name in self.task.parameter_names]
        found = misfits(seen, [made[name].reshape(1, -1) for name in self.task.parameter_names], 0.0)[0]
        if not self.weight or not problem.statistics or not sent[0].statistics:
            return found
        mean = {name: torch.stack([one.statistics[name] for one in sent]).mean(0) for name in sent[0].statistics}
        return found + self.weight * statistics_misfit(mean, problem.statistics, self.models[index])

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,) and their gradients in the images (P, M, C, H, W)."""
        costs, slopes = [], []
        for index, own in enumerate(images):
            candidates = own.detach().requires_grad_()
            cost = self.cost(index, candidates)
            slopes.append(self.derivative(index, cost, candidates).nan_to_num(0, 0, 0))
            costs.append(cost.detach())
        return torch.stack(costs), torch.stack(slopes)

    def derivative(self, index: int, cost: Tensor, candidates: Tensor) -> Tensor:
        """The gradient of a cost in the candidates."""
        return torch.autograd.grad(cost, candidates)[0]


def _cast(values: Parameters, device: str, dtype: torch.dtype) -> Parameters:
    return {n: v.to(device, dtype) if v.is_floating_point() else v.to(device) for n, v in values.items()}
