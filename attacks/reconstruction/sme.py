"""Inversion of an update by a surrogate model between the two that the server knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.matching.batch_statistics import watched_statistics
from leakboard.attacks.reconstruction.matching.gradients import Slopes
from leakboard.attacks.reconstruction.matching.local_steps import LocalMatcher, Simulated


class SurrogateMatcher(LocalMatcher):
    """Compares with the gradient at w_t - a D, a in [0, 1]; every call of `slopes` also moves each problem's a."""

    #: the share of the way, one number per problem, and the optimiser of all of them
    shares: Tensor
    rate: float

    def start(self, share: float, rate: float) -> SurrogateMatcher:
        """Begin at this share of the way; Adam moves it at this rate."""
        first = self.targets[0][self.task.parameter_names[0]]
        self.shares = torch.full((len(self.problems),), share, device=first.device, dtype=first.dtype).requires_grad_()
        self.optimiser = torch.optim.Adam([self.shares], lr=max(rate, 1e-12))
        self.rate = rate
        return self

    def simulate(self, index: int, images: Tensor, labels: Tensor) -> Simulated:
        """One gradient of all images, at the surrogate."""
        model, update = self.models[index], self.targets[index]
        way = self.task.public.training.update_scale if self.problems[index].update is not None else 0.0
        weights = {name: model[name] - self.shares[index] * way * update[name] for name in self.task.parameter_names}
        buffers = {name: model[name].clone() for name in self.task.buffer_names}
        with watched_statistics(self.task, model) as found:
            logits = self.task.logits({**weights, **buffers}, self.task.arranged(images), train=True)
        loss = self.task.loss(logits, labels)
        slopes: Sequence[Tensor] = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        one_pass = len(self.task.public.training.local_schedule(len(images))) == 1
        return Simulated(dict(zip(weights, slopes, strict=True)), found if one_pass else {})

    def derivative(self, index: int, cost: Tensor, candidates: Tensor) -> Tensor:
        """The gradient in the candidates; that in the share is kept for the next step."""
        along, of_shares = torch.autograd.grad(cost, [candidates, self.shares])
        own = of_shares.nan_to_num(0, 0, 0)
        self.shares.grad = own if self.shares.grad is None else self.shares.grad + own
        return along

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,) and their gradients in the images (P, M, C, H, W); then one step of the shares."""
        self.shares.grad = None
        found = super().slopes(images)
        if self.rate:
            self.optimiser.step()
            with torch.no_grad():
                self.shares.clamp_(0, 1)
        return found


class Sme(InvertingGradients):
    """Match the update with one gradient at a surrogate model between the two that the server knows.

    min_(x, a)  1 - cos(D, g(w_t - a D; x))  +  tv * TV(x),    D = w_t - w_(t+1),   a in [0, 1],   x in [0, 1]

    One gradient of all the client's records stands for the sum over its local steps, so an iteration costs the same for
    any number of steps. a = 0 is `inverting-gradients`. The original moves the images by plain Adam at rate 1; here
    they move as in `inverting-gradients`. Without local steps there is one model only: a stays 0. Of a mean over
    clients only the mean of their last models is known; the surrogate lies on the way to it.
    """

    name: ClassVar[str] = "sme"
    citation: ClassVar[str] = "Zhu et al., Surrogate Model Extension (SME), ICML 2023"

    share: float = Field(0.5, ge=0, le=1, description="a at the start")
    share_rate: float = Field(1e-3, ge=0, le=1, description="Adam's learning rate of a; 0: it stays")
    # not tuned, as in `unrolled`
    statistics: float = Field(0.1, ge=0, description="weight of the batch-norm statistics after one step")
    unrolls: ClassVar[bool] = True

    def matcher(self, knowledge: Knowledge, problems: tuple[Inversion, ...], labels: Tensor) -> Slopes:
        """The cost at the surrogate."""
        imitations, device = self.imitations(knowledge, problems), knowledge.device
        made = SurrogateMatcher(knowledge.task, problems, labels, self.restarts, device, imitations, self.statistics)
        return made.start(self.share, self.share_rate)

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert all problems; say so where there are no two models."""
        answer = super().reconstruct(knowledge, task)
        if knowledge.public.training.is_local:
            return answer
        flag = "no local steps: there is one model, and this is inverting-gradients"
        return replace(answer, flags=(*answer.flags, flag))
