"""The null control of reconstruction: gradients of the same size that hold nothing of the records."""

from __future__ import annotations

from dataclasses import replace

import torch

from leakboard.attacks.base import Inversion, Knowledge, ReconstructionTask


def shuffled(problem: Inversion, seed: int) -> Inversion:
    """The problem with the values of each tensor in random order: the same norms, but nothing of the image."""
    random = torch.Generator().manual_seed(seed)
    values = {
        name: value.flatten()[torch.randperm(value.numel(), generator=random)].view_as(value)
        for name, value in problem.gradient.values.items()
    }
    return replace(problem, gradient=replace(problem.gradient, values=values))


class ShuffledTask(ReconstructionTask):
    """A task whose gradients are shuffled."""

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        """The problems of the view, shuffled."""
        return tuple(shuffled(problem, seed) for seed, problem in enumerate(super().problems(knowledge)))
