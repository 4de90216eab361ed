"""Deep Leakage from Gradients: match the gradient by L-BFGS, labels included."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from attacks.base import Inversion, Knowledge, ReconstructionAnswer, ReconstructionAttack, ReconstructionTask

#: evaluations of the distance that one L-BFGS step may take
EVALUATIONS = 25
#: an optimisation that falls back to its best point this often is over
FALLS = 3
#: a relative distance that counts as solved
SOLVED = 1e-10
#: a relative distance at which images mean nothing
UNSOLVED = 0.05

#: relative squared distance of the gradient of images (M, C, H, W) with label probabilities (M, classes)
Distance = Callable[[Tensor, Tensor], Tensor]


@dataclass
class _Best:
    """The best point so far: network inputs (M, C, H, W) and label logits (M, classes)."""

    inputs: Tensor
    logits: Tensor
    cost: float = math.inf

    def offer(self, inputs: Tensor, logits: Tensor, cost: float) -> None:
        """Keep the point if it is better; one that is no number never is."""
        if cost < self.cost:
            self.inputs, self.logits, self.cost = inputs.detach().clone(), logits.detach().clone(), cost


class Dlg(ReconstructionAttack):
    """Squared distance to the gradient, minimised over images and soft labels together by L-BFGS.

    min_{x, q}  || g(x, softmax(q)) - g ||^2 / || g ||^2

    over images x in the model's normalised space, unbounded, and label logits q, both from standard normal draws. The
    division changes no minimum; it makes the optimiser's tolerances mean the same for every gradient. Problems are
    optimised one by one, since a line search over all of them at once would couple their steps. Where L-BFGS
    leaves the numbers or stalls it starts again from the best point; of all restarts the one with the
    least distance is returned. Where the cell gives the labels they are used.
    """

    name: ClassVar[str] = "dlg"
    citation: ClassVar[str] = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019"

    iterations: int = Field(100, ge=1, le=100_000, description="L-BFGS steps of at most 20 inner iterations")
    restarts: int = Field(2, ge=1, le=64)

    def budget(self) -> dict[str, int]:
        """Steps and restarts."""
        return {"iterations": self.iterations, "restarts": self.restarts}

    def work(self, problems: int) -> tuple[float, float]:
        """A step has about 22 evaluations of three gradients each: forward, backward, and backward through that."""
        return 3.0 * 22 * self.iterations * self.restarts * problems, 0.0

    def labels_for(self, knowledge: Knowledge, problem: Inversion) -> Tensor | None:
        """The labels (M,) that the optimisation is told; None: it has to find them."""
        return problem.labels

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert every problem on its own."""
        problems = task.problems(knowledge)
        generator = knowledge.generator()
        images, costs, zero = [], [], False
        for index, problem in enumerate(problems):
            zero = zero or not any(bool(g.any()) for g in problem.gradient.values.values())
            best = self._invert(knowledge, problem, generator)
            images.append(_images(knowledge, best.inputs))
            # no starting point may have had a distance at all: a model or gradient without numbers
            costs.append(best.cost if math.isfinite(best.cost) else 1.0)
            knowledge.progress(f"problem {index + 1} of {len(problems)}: relative distance {costs[-1]:.2g}")
        flags = ["gradient all zero"] if zero else []
        stuck = sum(cost > UNSOLVED for cost in costs)
        if stuck:
            flags.append(f"not converged: relative distance above {UNSOLVED} in {stuck} of {len(problems)} problems")
        return ReconstructionAnswer(tuple(images), tuple(flags), {"matching_cost": sum(costs) / len(costs)})

    def _invert(self, knowledge: Knowledge, problem: Inversion, generator: torch.Generator) -> _Best:
        """The best of all restarts."""
        records, classes = problem.gradient.records, knowledge.public.classes
        labels = self.labels_for(knowledge, problem)
        fixed = one_hot(labels, classes).float().to(knowledge.device) if labels is not None else None
        distance = _distance(knowledge, problem)
        found = []
        for _ in range(self.restarts):
            start = torch.randn(records, *knowledge.public.shape, generator=generator)
            guess = torch.randn(records, classes, generator=generator)
            best = _Best(start.to(knowledge.device), guess.to(knowledge.device))
            self._descend(distance, best, fixed)
            found.append(best)
            if best.cost < SOLVED:
                break
        return min(found, key=lambda best: best.cost)

    def _descend(self, distance: Distance, best: _Best, fixed: Tensor | None) -> None:
        """L-BFGS steps from the best point, again and again from it where they fail; improves `best` in place."""
        steps = self.iterations
        for _ in range(FALLS):
            inputs, logits = best.inputs.clone().requires_grad_(), best.logits.clone().requires_grad_()
            variables = [inputs] if fixed is not None else [inputs, logits]
            optimiser = torch.optim.LBFGS(
                variables, max_iter=20, max_eval=EVALUATIONS, tolerance_change=0, line_search_fn="strong_wolfe"
            )

            def closure(inputs: Tensor = inputs, logits: Tensor = logits, variables: list[Tensor] = variables) -> Tensor:
                cost = distance(inputs, fixed if fixed is not None else logits.softmax(1))
                for variable, slope in zip(variables, torch.autograd.grad(cost, variables), strict=True):
                    variable.grad = slope
                best.offer(inputs, logits, float(cost.detach()))
                return cost.detach()

            while steps > 0 and best.cost > SOLVED:
                steps -= 1
                before = best.cost
                optimiser.step(closure)  # type: ignore[no-untyped-call]
                if not best.cost < before:  # stalled, or left the numbers
                    break


def _distance(knowledge: Knowledge, problem: Inversion) -> Distance:
    """The function that is minimised, of network inputs in the model's normalised space."""
    task, device = knowledge.task, knowledge.device
    model = {n: v.float().to(device) if v.is_floating_point() else v.to(device) for n, v in problem.model.items()}
    target = [problem.gradient.values[name].float().to(device) for name in task.parameter_names]
    size = sum(t.square().sum() for t in target).clamp(min=1e-30)  # type: ignore[union-attr]

    def distance(inputs: Tensor, labels: Tensor) -> Tensor:
        weights = {name: model[name].detach().requires_grad_() for name in task.parameter_names}
        buffers = {name: model[name].clone() for name in task.buffer_names}
        logits = task.logits({**weights, **buffers}, _images(knowledge, inputs), train=True)
        made = torch.autograd.grad(task.loss(logits, labels), list(weights.values()), create_graph=True)
        total = torch.stack([(m - t).square().sum() for m, t in zip(made, target, strict=True)]).sum()
        return total / size

    return distance


def _images(knowledge: Knowledge, inputs: Tensor) -> Tensor:
    """Images in image units of network inputs."""
    mean = torch.tensor(knowledge.public.mean, device=inputs.device).view(-1, 1, 1)
    std = torch.tensor(knowledge.public.std, device=inputs.device).view(-1, 1, 1)
    return inputs * std + mean
