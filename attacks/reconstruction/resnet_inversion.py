"""An attack on deep ReLU networks without batch norm: regress, sharpen locally, then match."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import ClassVar, NamedTuple

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
#: the local regression between two matchings draws residuals of this share of their size
SHRUNK = 0.7
#: auxiliary images behind the image prior
PRIOR_IMAGES = 8000


class Stage(NamedTuple):
    """What the attack would answer after a stage: its name, images (M, C, H, W), what the first regression explains."""

    name: str
    images: Tensor
    explained: float


class ResNetInversion(RidgeInversion):
    """Ridge regression, local regressions around its answer, and standardised matching with a bent ReLU.

    1. `ridge` gives a first image and, by its leave-one-out residuals, a model of what that image still lacks.
    2. Local rounds: images x + residual are drawn, their gradients computed, and the regression is fitted again; around
       the answer the network is closer to linear.
    3. Standardised matching: min mean_layers mean_i ((g_i(x) - g_i) / sigma_i)^2 + 0.03 mean z^2 over x = mean + U S z,
       in whose derivative a ReLU's mask can change (`matching.layers._BentRelu`). Global pooling leaves much of what a
       gradient tells in the masks, which double backward takes for constants.
    4. Where the misfit stays above `enough`, matching starts again, from a local regression around what it found. The
       image with the least misfit counts if that is below `accept`; otherwise the answer is that of step 2.

    Steps 3 and 4 need plain gradients of one record and a network of known layers; elsewhere the answer is that of
    steps 1 and 2. docs/attacks.md has the figures.
    """

    name: ClassVar[str] = "resnet-inversion"
    citation: ClassVar[str] = "LeakBoard; regression after Wu et al., UAI 2023, surrogate after Neftci et al., 2019"
    penalties: ClassVar[tuple[float, ...]] = (0.1, 0.3, 1.0)

    samples: int = Field(2000, ge=8, le=1_000_000, description="auxiliary gradients of the first regression")
    bins: int = Field(1024, ge=1, description="features per tensor")
    rounds: int = Field(1, ge=0, le=100, description="local regressions before the matching")
    local: int = Field(600, ge=8, description="gradients of a local regression")
    matchings: int = Field(3, ge=1, le=100, description="matchings at most; each starts around the answer before")
    enough: float = Field(0.05, ge=0, description="misfit at which no further matching is tried")
    iterations: int = Field(300, ge=0, le=1_000_000, description="steps of a matching")
    learning_rate: float = Field(0.8, gt=0, description="largest step of the matching, in deviations of the prior")
    bent: bool = Field(True, description="let the derivative of a ReLU's mask count; off for an ablation")
    prior: float = Field(0.03, ge=0, description="weight of the image prior in the matching")
    accept: float = Field(0.13, ge=0, description="largest misfit at which a matched image is preferred")

    @property
    def gradients(self) -> int:
        """Gradients of all regressions of a problem, at most."""
        return self.samples + (self.rounds + self.matchings - 1) * self.local

    def budget(self) -> dict[str, int]:
        """Gradients of the regressions and steps of the matchings, per problem, at most."""
        return {"gradients": self.gradients, "iterations": self.matchings * self.iterations}

    def work(self, problems: int) -> tuple[float, float]:
        """One gradient per example, three per step."""
        return float(problems * (self.gradients + 3 * self.matchings * self.iterations)), 0.0

    def solve(self, knowledge: Knowledge, problem: Inversion, source: Source) -> Solved:
        """The images of one problem, and the share of variance that the first regression explains."""
        stages = list(self.stages(knowledge, problem, source))
        return Solved(stages[-1].images, stages[-1].explained) if stages else Solved(None, 0.0)

    def stages(self, knowledge: Knowledge, problem: Inversion, source: Source) -> Iterator[Stage]:
        """The answer after each stage; the last one is the attack's."""
        moments = Moments()
        inverter = self.inverter(knowledge, problem, source, moments)
        if inverter is None:
            return
        explained, image = inverter.ridge.explained, inverter(problem.gradient.values)
        yield Stage("ridge", image, explained)
        if problem.gradient.records > 1:
            return
        for number in range(self.rounds):
            image, inverter = self._local(knowledge, problem, source, image, inverter, 1.0, number)
            yield Stage("local", image, explained)
        program = program_of(knowledge.task.skeleton(), knowledge.public.shape)
        if not isinstance(source, KnownResidual) or program is None or not self.iterations:
            return
        misfit = Standardised.of(source, problem.gradient.values, moments.deviations())
        gaussian = _prior_of(knowledge.auxiliary.images, self.flip)
        best, least, start = image, min(self.accept, misfit.misfit(image[0])), image
        for number in range(1, self.matchings + 1):
            rate = self.learning_rate / min(number, 2)  # later ones start closer to the image
            found = self._matched(knowledge, misfit, gaussian, start, rate)
            away = misfit.misfit(found[0])
            knowledge.progress(f"misfit {away:.3f} after matching {number}")
            if away < least:
                best, least = found, away
            yield Stage("matched", best, explained)
            if least < self.enough or number == self.matchings:
                return
            start, _ = self._local(knowledge, problem, source, found, inverter, SHRUNK, self.rounds + number)

    def _matched(
        self, knowledge: Knowledge, misfit: Standardised, prior: GaussianImages, start: Tensor, rate: float
    ) -> Tensor:
        """The image (1, C, H, W) that matching finds from `start`."""
        steps, weight, bent = self.iterations, self.prior, self.bent
        found, _ = matched(
            knowledge, misfit, prior, start[0], iterations=steps, learning_rate=rate, weight=weight, bent=bent
        )
        return found[None]

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
    """The Gaussian of the first auxiliary images; made once for all problems."""
    images = images[:PRIOR_IMAGES]
    return GaussianImages(torch.cat([images, images.flip(-1)]) if flip else images)
