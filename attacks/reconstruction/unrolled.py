"""Inversion of an update through the client's local training."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.matching.gradients import Slopes
from leakboard.attacks.reconstruction.matching.local_steps import LocalMatcher, Simulated, simulated_update


class UnrolledMatcher(LocalMatcher):
    """Compares with the update of simulated local steps."""

    def simulate(self, index: int, images: Tensor, labels: Tensor) -> Simulated:
        """All local steps of one client."""
        found = simulated_update(self.task, self.models[index], images, labels)
        scale = self.task.public.training.update_scale
        return Simulated({name: value / scale for name, value in found.update.items()}, found.statistics)


class Unrolled(InvertingGradients):
    """Simulate the client's local steps on candidate images and match the update, by derivatives through all steps.

    min_x  1 - cos(D(x), D)  +  tv * TV(x)  +  statistics * S(x),    D(x) = w_t - w_(t+1)(x),   x in [0, 1]

    D(x) is the update of the public schedule: which records are in which step, how many steps, at which rate. S(x) is
    the misfit of the batch-norm statistics after training, where the view holds them. Our schedule has the same order
    in each pass over the records, so there is one set of images; the original has one per pass and a prior that makes
    them agree. It also weighs layers by depth and takes squared distances. Without local steps this is
    `inverting-gradients` with the statistics. Labels that the cell does not grant are recovered from the mean gradient
    along the way; which record belongs to which batch is then a guess.
    """

    name: ClassVar[str] = "unrolled"
    citation: ClassVar[str] = "Dimitrov et al., Data Leakage in Federated Averaging, TMLR 2022"

    # not tuned: iterations, rate and tv are those of inverting-gradients; the weight is that of breaching for
    # GradInversion
    statistics: float = Field(0.1, ge=0, description="weight of the batch-norm statistics, where the view holds them")
    unrolls: ClassVar[bool] = True

    def matcher(self, knowledge: Knowledge, problems: tuple[Inversion, ...], labels: Tensor) -> Slopes:
        """The cost through all local steps."""
        imitations = self.imitations(knowledge, problems)
        return UnrolledMatcher(
            knowledge.task, problems, labels, self.restarts, knowledge.device, imitations, self.statistics
        )
