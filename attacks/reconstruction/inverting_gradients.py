"""Inverting Gradients: find the images whose gradient has the same direction."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import (
    STOPPED,
    GradientMatching,
    Inversion,
    Knowledge,
    ReconstructionAnswer,
    ReconstructionTask,
    gradient_flags,
)
from leakboard.attacks.reconstruction.matching.batch_statistics import WithStatistics
from leakboard.attacks.reconstruction.matching.descent import Descent
from leakboard.attacks.reconstruction.matching.gradients import Matcher, Slopes, starting_points
from leakboard.attacks.reconstruction.matching.labels import labels_of

#: weight of the batch-norm statistics where the view holds them; not tuned (breaching has 0.1 for GradInversion)
STATISTICS = 0.1


class InvertingGradients(GradientMatching):
    """Cosine matching of the gradient with total variation, signed Adam and step decay.

    min_x  1 - <g(x), g> / (||g(x)|| ||g||)  +  tv * TV(x),   x in [0, 1]

    over all parameters together, with TV(x) = mean |dx/dh| + mean |dx/dw|. Everything is in image units, so that the
    normalisation of the data changes neither steps nor weights. Adam runs on the sign of the image gradient; the
    learning rate is multiplied by 0.1 at 3/8, 5/8 and 7/8 of the iterations. All targets and restarts are optimised in
    parallel. The best iterate is chosen by the objective, the best restart by the matching cost only. Labels are
    recovered from the last layer's gradient unless the cell grants them. With batch norm in train mode, the misfit of
    the statistics that the client sent is added with the weight 0.1 (`matching/batch_statistics.py`).
    """

    name: ClassVar[str] = "inverting-gradients"
    citation: ClassVar[str] = "Geiping et al., Inverting Gradients - How easy is it to break privacy, NeurIPS 2020"

    iterations: int = Field(1000, ge=1, le=1_000_000)
    restarts: int = Field(1, ge=1, le=64)
    # benchmarks/inversion_quality.py, 8 auxiliary victims, untrained models, 26 settings: the best tv is 0.01 for
    # digits/convnet, 0.1 for CIFAR-10/convnet, 0.3 (the largest tried) for CIFAR-10/ResNet20, so a suite should set
    # it; the learning rate is the largest one tried
    learning_rate: float = Field(0.3, gt=0, description="in image units")
    tv: float = Field(3e-2, ge=0, description="weight of the total variation of images in [0, 1]")

    #: whether the attack uses the updates of local steps as such, and takes none for a gradient
    unrolls: ClassVar[bool] = False
    #: whether the cost depends on the size of a gradient, and not only on its direction
    sees_scale: ClassVar[bool] = False

    def budget(self) -> dict[str, int]:
        """Iterations and restarts."""
        return {"iterations": self.iterations, "restarts": self.restarts}

    def work(self, problems: int) -> tuple[float, float]:
        """An iteration costs about three gradients: forward, backward, and backward through the gradient."""
        return 3.0 * self.iterations * self.restarts * problems, 0.0

    def matcher(self, knowledge: Knowledge, problems: tuple[Inversion, ...], labels: Tensor) -> Slopes:
        """The cost of candidates: of the gradient, and of the batch-norm statistics where the view holds them."""
        task, device = knowledge.task, knowledge.device
        imitations = self.imitations(knowledge, problems)
        plain = Matcher(
            task, problems, labels, self.restarts, device, imitations, size=self.size_weight(knowledge, problems)
        )
        # after several local steps the statistics are not those of one pass
        if knowledge.public.training.local_steps > 1 or not any(problem.statistics for problem in problems):
            return plain
        return WithStatistics(plain, task, problems, self.restarts, STATISTICS, device)

    def size_weight(self, knowledge: Knowledge, problems: tuple[Inversion, ...]) -> float:
        """The weight of the gradient's size in the cost: none, the direction alone counts."""
        return 0.0

    def descent(self) -> Descent:
        """How the cost is minimised."""
        return Descent(self.iterations, self.learning_rate, self.tv)

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert all problems (of one size) in one optimisation."""
        problems = task.problems(knowledge)
        labels = [labels_of(knowledge, problem) for problem in problems]
        matcher = self.matcher(knowledge, problems, torch.stack(labels))
        start = starting_points(knowledge, problems, self.restarts)
        best = self.descent()(knowledge, matcher, start)
        images, costs = best.of_restarts(self.restarts)
        flags = [
            *gradient_flags(problems, unrolled=self.unrolls),
            *self.imitation_flags(knowledge, problems, sees_scale=self.sees_scale),
        ]
        if best.iterations < self.iterations:
            flags.append(f"{STOPPED} after {best.iterations} of {self.iterations} iterations")
        costs = costs.nan_to_num(1.0)
        if float(costs.median()) > 0.5:
            flags.append("not converged: the median matching cost is above 0.5")
        found = {"matching_cost": float(costs.mean())}
        return ReconstructionAnswer(tuple(images), tuple(flags), found, tuple(labels))
