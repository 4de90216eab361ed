"""Deep Leakage from Gradients: match the gradient by L-BFGS, labels included."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from leakboard.attacks.base import (
    STOPPED,
    GradientMatching,
    Inversion,
    Knowledge,
    ReconstructionAnswer,
    ReconstructionTask,
    gradient_flags,
)
from leakboard.attacks.building_blocks.candidate_transform import CandidateTransform

#: an optimisation ends if a restart from its best point lowers the distance by less than this share
STALLED = 0.01
#: standard deviation of the first images (the original has 1, which ended worse for all of four digits)
SPREAD = 0.4
#: a relative distance that counts as solved
SOLVED = 1e-10
#: a relative distance above which images mean nothing
UNSOLVED = 0.05

#: relative squared distance of the gradient of images (M, C, H, W) with label probabilities (M, classes)
Distance = Callable[[Tensor, Tensor], Tensor]


@dataclass
class _Best:
    """The best point so far: network inputs (M, C, H, W) and label logits (M, classes); in the end labels (M,)."""

    inputs: Tensor
    logits: Tensor
    cost: float = math.inf
    stopped: bool = False
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def offer(self, inputs: Tensor, logits: Tensor, cost: float) -> None:
        """Keep the point if it is better; a cost of NaN is never better."""
        if cost < self.cost:
            self.inputs, self.logits, self.cost = inputs.detach().clone(), logits.detach().clone(), cost


class Dlg(GradientMatching):
    """Squared distance to the gradient, minimised over images and soft labels together by L-BFGS.

    min_{x, q}  || g(x, softmax(q)) - g ||^2 / || g ||^2

    over images x in the model's normalised space, unbounded, and label logits q, both drawn from a normal distribution.
    The division changes no minimum; it gives the optimiser's tolerances the same meaning for every gradient. Steps have
    length one, without a line search, as in the original. With a line search the optimisation gets stuck at the kinks
    of the ReLUs (measured on four digits: 17 dB instead of 24). Without one it can reach values that are not finite. In
    that case, and if a step brings no progress, it starts again from the best point. Problems are optimised one by one,
    because a common L-BFGS would couple them. The restart with the smallest distance is returned. If the cell grants
    the labels, they are used.
    """

    name: ClassVar[str] = "dlg"
    citation: ClassVar[str] = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019"

    iterations: int = Field(100, ge=1, le=100_000, description="L-BFGS steps of at most 20 inner iterations")
    restarts: int = Field(2, ge=1, le=64)

    def budget(self) -> dict[str, int]:
        """Steps and restarts."""
        return {"iterations": self.iterations, "restarts": self.restarts}

    def work(self, problems: int) -> tuple[float, float]:
        """A step has 20 evaluations of three gradients each: forward, backward, and backward through the gradient."""
        return 3.0 * 20 * self.iterations * self.restarts * problems, 0.0

    def labels_for(self, knowledge: Knowledge, problem: Inversion) -> Tensor | None:
        """The labels (M,) that the optimisation may use; None if it has to find them."""
        return problem.labels

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert every problem on its own."""
        problems = task.problems(knowledge)
        images, labels, costs, late = [], [], [], 0
        imitations = self.imitations(knowledge, problems) or (None,) * len(problems)
        for index, (problem, imitation) in enumerate(zip(problems, imitations, strict=True)):
            left = max(0.0, knowledge.time_left()) / (len(problems) - index)  # an equal share of the time per problem
            best = self._invert(replace(knowledge, deadline=time.monotonic() + left), problem, imitation)
            late += best.stopped
            images.append(_images(knowledge, best.inputs).cpu())
            labels.append(best.labels)
            # if the model or the gradient is not finite, no starting point has a distance
            costs.append(best.cost if math.isfinite(best.cost) else 1.0)
            knowledge.progress(f"problem {index + 1} of {len(problems)}: relative distance {costs[-1]:.2g}")
        flags = [*gradient_flags(problems), *self.imitation_flags(knowledge, problems, sees_scale=True)]
        if late:
            flags.append(f"{STOPPED} in {late} of {len(problems)} problems")
        stuck = sum(cost > UNSOLVED for cost in costs)
        if stuck:
            flags.append(f"not converged: relative distance above {UNSOLVED} in {stuck} of {len(problems)} problems")
        found = {"matching_cost": sum(costs) / len(costs)}
        return ReconstructionAnswer(tuple(images), tuple(flags), found, tuple(labels))

    def _invert(self, knowledge: Knowledge, problem: Inversion, imitation: CandidateTransform | None) -> _Best:
        """The best of all restarts."""
        generator = knowledge.generator_for(problem, "start")
        records, classes = problem.gradient.records, knowledge.public.classes
        labels = self.labels_for(knowledge, problem)
        fixed = one_hot(labels, classes).float().to(knowledge.device) if labels is not None else None
        distance = _distance(knowledge, problem, imitation)
        found = []
        for _ in range(self.restarts):
            start = SPREAD * torch.randn(records, *knowledge.public.shape, generator=generator)
            guess = torch.randn(records, classes, generator=generator)
            best = _Best(start.to(knowledge.device), guess.to(knowledge.device))
            self._descend(knowledge, distance, best, fixed)
            found.append(best)
            if best.cost < SOLVED or knowledge.time_left() <= 0:
                break
        winner = min(found, key=lambda best: best.cost)
        winner.labels = labels if labels is not None else winner.logits.argmax(1).cpu()
        winner.stopped = winner.cost >= SOLVED and (len(found) < self.restarts or any(b.stopped for b in found))
        return winner

    def _descend(self, knowledge: Knowledge, distance: Distance, best: _Best, fixed: Tensor | None) -> None:
        """L-BFGS steps from the best point, restarted from it whenever they fail; improves `best` in place."""
        steps, reached = self.iterations, math.inf
        while steps > 0 and best.cost > SOLVED:
            optimiser, closure = _lbfgs(distance, best, fixed)
            before = math.inf
            while steps > 0 and best.cost > SOLVED:
                if knowledge.time_left() <= 0:
                    closure()  # so that the distance of the starting point is known
                    best.stopped = True
                    return
                optimiser.step(closure)  # type: ignore[no-untyped-call]
                steps -= 1
                if not best.cost < before:
                    break
                before = best.cost
            if not best.cost < (1 - STALLED) * reached:
                break
            reached = best.cost


def _lbfgs(distance: Distance, best: _Best, fixed: Tensor | None) -> tuple[torch.optim.LBFGS, Callable[[], Tensor]]:
    """A fresh optimiser at the best point, and its closure, which offers every point that it evaluates."""
    inputs, logits = best.inputs.clone().requires_grad_(), best.logits.clone().requires_grad_()
    variables = [inputs] if fixed is not None else [inputs, logits]
    optimiser = torch.optim.LBFGS(variables, max_iter=20, tolerance_change=0)

    def closure() -> Tensor:
        cost = distance(inputs, fixed if fixed is not None else logits.softmax(1))
        for variable, slope in zip(variables, torch.autograd.grad(cost, variables), strict=True):
            variable.grad = slope
        best.offer(inputs, logits, float(cost.detach()))
        return cost.detach()

    return optimiser, closure


def _distance(knowledge: Knowledge, problem: Inversion, imitation: CandidateTransform | None) -> Distance:
    """The function to minimise, of network inputs in the model's normalised space."""
    task, device = knowledge.task, knowledge.device
    model = {n: v.float().to(device) if v.is_floating_point() else v.to(device) for n, v in problem.model.items()}
    target = [problem.gradient.values[name].float().to(device) for name in task.parameter_names]
    size = torch.stack([t.square().sum() for t in target]).sum().clamp(min=1e-30)

    def gradient(inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        weights = {name: model[name].detach().requires_grad_() for name in task.parameter_names}
        buffers = {name: model[name].clone() for name in task.buffer_names}
        logits = task.logits({**weights, **buffers}, _images(knowledge, inputs), train=True)
        return torch.autograd.grad(task.loss(logits, labels), list(weights.values()), create_graph=True)

    def distance(inputs: Tensor, labels: Tensor) -> Tensor:
        if imitation is None:
            made = gradient(inputs, labels)
        else:
            pieces = zip(inputs.chunk(imitation.parts), labels.chunk(imitation.parts), strict=True)
            columns = zip(*(gradient(x, y) for x, y in pieces), strict=True)
            stacked = {n: torch.stack(column) for n, column in zip(task.parameter_names, columns, strict=True)}
            imitated = imitation(stacked)
            made = tuple(imitated[name][0] for name in task.parameter_names)
        total = torch.stack([(m - t).square().sum() for m, t in zip(made, target, strict=True)]).sum()
        return total / size

    return distance


def _images(knowledge: Knowledge, inputs: Tensor) -> Tensor:
    """Convert network inputs to images in image units."""
    mean = torch.tensor(knowledge.public.mean, device=inputs.device).view(-1, 1, 1)
    std = torch.tensor(knowledge.public.std, device=inputs.device).view(-1, 1, 1)
    return inputs * std + mean
