"""An attack on deep ReLU networks without batch norm: regress, sharpen locally, then match."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.matching.program import program_of
from leakboard.attacks.reconstruction.regression.learner import Inverter, Moments, learn
from leakboard.attacks.reconstruction.regression.sources import KnownResidual, Source
from leakboard.attacks.reconstruction.regression.standardised import GaussianImages, Standardised, matched
from leakboard.attacks.reconstruction.ridge import RidgeInversion, Solved
from leakboard.core.seeds import derive_seed

#: penalties of a local regression
LOCAL = (0.1, 0.3, 1.0, 3.0)
#: the last local regression draws residuals of this share of their size
SHRUNK = 0.7


class ResNetInversion(RidgeInversion):
    """Ridge regression, local regressions around its answer, and standardised matching with a bent ReLU.

    1. `ridge` gives a first image and, by its leave-one-out residuals, a model of what that image still lacks.
    2. Local rounds: images x + residual are drawn, their gradients computed, and the regression is fitted again; around
       the answer the network is closer to linear.
    3. Standardised matching: min mean_layers mean_i ((g_i(x) - g_i) / sigma_i)^2 + 0.03 mean z^2 over x = mean + U S z,
       in whose derivative a ReLU's mask can change (`matching.layers._BentRelu`). Global pooling leaves much of what a
       gradient tells in the masks, which double backward takes for constants.
    4. One more local round. The matched image counts only if its misfit is below `accept`; otherwise the answer is that
       of step 2.

    Steps 3 and 4 need plain gradients of one record and a network of known layers; elsewhere the answer is that of
    steps 1 and 2. docs/attacks.md has the figures.
    """

    name: ClassVar[str] = "resnet-inversion"
    citation: ClassVar[str] = "LeakBoard; regression after Wu et al., UAI 2023, surrogate after Neftci et al., 2019"

    rounds: int = Field(3, ge=0, le=100, description="local regressions before the matching")
    local: int = Field(1200, ge=8, description="gradients of a local regression")
    iterations: int = Field(300, ge=0, le=1_000_000, description="steps of the matching")
    bent: bool = Field(True, description="let the derivative of a ReLU's mask count; off for an ablation")
    prior: float = Field(0.03, ge=0, description="weight of the image prior in the matching")
    accept: float = Field(0.2, ge=0, description="largest misfit at which a matched image is preferred")

    def budget(self) -> dict[str, int]:
        """Gradients of the regressions and steps of the matching, per problem."""
        return {"gradients": self.samples + (self.rounds + 1) * self.local, "iterations": self.iterations}

    def work(self, problems: int) -> tuple[float, float]:
        """One gradient per example, three per step."""
        return float(problems * (self.samples + (self.rounds + 1) * self.local + 3 * self.iterations)), 0.0

    def solve(self, knowledge: Knowledge, problem: Inversion, source: Source) -> Solved:
        """The images of one problem, and the share of variance that the first regression explains."""
        moments = Moments()
        inverter = self.inverter(knowledge, problem, source, moments)
        if inverter is None:
            return Solved(None, 0.0)
        explained, image = inverter.ridge.explained, inverter(problem.gradient.values)
        if problem.gradient.records > 1:
            return Solved(image, explained)
        for number in range(self.rounds):
            image, inverter = self._local(knowledge, problem, source, image, inverter, 1.0, number)
        program = program_of(knowledge.task.skeleton(), knowledge.public.shape)
        if not isinstance(source, KnownResidual) or program is None or not self.iterations:
            return Solved(image, explained)
        misfit = Standardised.of(source, problem.gradient.values, moments.deviations())
        gaussian = _prior_of(knowledge.auxiliary.images, self.flip)
        better, _ = matched(
            knowledge, misfit, gaussian, image[0], iterations=self.iterations, weight=self.prior, bent=self.bent
        )
        before, after = misfit.misfit(image[0]), misfit.misfit(better)
        knowledge.progress(f"misfit {before:.3f} before and {after:.3f} after the matching")
        if not after < min(self.accept, before):
            return Solved(image, explained)
        last, _ = self._local(knowledge, problem, source, better[None], inverter, SHRUNK, self.rounds)
        return Solved(last if misfit.misfit(last[0]) < 2 * after else better[None], explained)

    def _local(
        self,
        knowledge: Knowledge,
        problem: Inversion,
        source: Source,
        image: Tensor,
        inverter: Inverter,
        size: float,
        number: int,
    ) -> tuple[Tensor, Inverter]:
        """A regression on images (1, C, H, W) around `image`; both stay as they are if time is over."""
        random = knowledge.generator_for(problem, f"local {number}")
        unknown = inverter.unknown[torch.randint(len(inverter.unknown), (self.local,), generator=random)]
        around = (image + size * unknown).clamp(0, 1)
        found = learn(knowledge, source, around, inverter.sketch, LOCAL, derive_seed(knowledge.seed, "local", number))
        return (image, inverter) if found is None else (found(problem.gradient.values), found)


@lru_cache(maxsize=1)
def _prior_of(images: Tensor, flip: bool) -> GaussianImages:
    """The Gaussian of the auxiliary images; made once for all problems."""
    return GaussianImages(torch.cat([images, images.flip(-1)]) if flip else images)
