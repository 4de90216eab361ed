"""GIFD: gradient inversion over the feature domain of a generator."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

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
from leakboard.attacks.reconstruction.matching.generator import (
    Generator,
    GeneratorSettings,
    on_sphere,
    trained_generator,
    untrained_generator,
)
from leakboard.attacks.reconstruction.matching.gradients import Matcher, total_variation
from leakboard.attacks.reconstruction.matching.labels import labels_of

#: features between z and the image
LAYERS = 4
#: time that is kept in reserve before a deadline, in iterations
RESERVE = 3


def project_l1(x: Tensor, radius: Tensor) -> Tensor:
    """The nearest point to each row of x (N, n) in the l1 ball of its radius (N,) around 0.

    Soft thresholding, sign(x) max(|x| - t, 0), with the t >= 0 that makes the l1 norm equal to the radius;
    t is found by sorting (Duchi et al., ICML 2008).
    """
    sizes = x.abs()
    ordered = sizes.sort(dim=1, descending=True).values
    excess = (ordered.cumsum(1) - radius[:, None]) / torch.arange(1, x.shape[1] + 1, device=x.device)
    last = (ordered > excess).sum(1, keepdim=True).clamp(min=1) - 1  # the last entry that stays above the threshold
    threshold = excess.gather(1, last).clamp(min=0)
    return x.sign() * (sizes - threshold).clamp(min=0)


def ramp(done: float) -> float:
    """The learning rate's factor when a share of the steps is done: up over 5 %, down by a cosine over the last 75 %.

    >>> [round(ramp(done), 3) for done in (0.0, 0.025, 0.25, 0.625, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return min(1.0, done / 0.05) * 0.5 * (1 - math.cos(math.pi * min(1.0, (1 - done) / 0.75)))


def around(centre: Tensor, radius: float) -> Callable[[Tensor], Tensor]:
    """The projection onto the l1 ball around each feature (N, ...), with a radius relative to the feature's l1 norm."""
    middle = centre.flatten(1)
    radii = radius * middle.abs().sum(1)
    return lambda x: (middle + project_l1(x.flatten(1) - middle, radii)).view_as(x)


@dataclass(frozen=True)
class Found:
    """What a search found for each of P candidates with M records.

    Its points (P * M, ...), their images (P, M, C, H, W), objectives (P,) and matching costs (P,).
    """

    points: Tensor
    images: Tensor
    objectives: Tensor
    costs: Tensor

    def where(self, better: Tensor, other: Found) -> Found:
        """The other's candidates where `better` (P,) is true, otherwise these."""
        records = self.images.shape[1]
        return Found(
            torch.where(_beside(better.repeat_interleave(records), self.points), other.points, self.points),
            torch.where(_beside(better, self.images), other.images, self.images),
            torch.where(better, other.objectives, self.objectives),
            torch.where(better, other.costs, self.costs),
        )

    def best_restart(self, restarts: int) -> Found:
        """For each problem, the candidate (of restarts * problems) with the smallest matching cost."""
        problems, records = len(self.costs) // restarts, self.images.shape[1]
        every = torch.arange(problems, device=self.costs.device)
        winner = self.costs.nan_to_num(torch.inf).view(restarts, problems).argmin(0) * problems + every
        points = self.points.view(-1, records, *self.points.shape[1:])[winner].flatten(0, 1)
        return Found(points, self.images[winner], self.objectives[winner], self.costs[winner])


def _beside(chosen: Tensor, values: Tensor) -> Tensor:
    return chosen.view(-1, *[1] * (values.ndim - 1))


@dataclass
class Search:
    """Minimises matching cost + tv * total variation over the points of one layer of a generator."""

    knowledge: Knowledge
    records: int
    tv: float
    iterations: int
    #: iterations over all calls, and the seconds of the slowest one
    made: int = 0
    slowest: float = 0.0

    def __call__(
        self,
        matcher: Matcher,
        start: Tensor,
        image: Callable[[Tensor], Tensor],
        project: Callable[[Tensor], Tensor],
        learning_rate: float,
        what: str,
    ) -> Found:
        """The best points found from `start` (P * M, ...): Adam, then `project`, until steps or time run out."""
        # points of each layer are scaled by their own size
        unit = _beside(start.flatten(1).square().mean(1).sqrt().clamp(min=1e-12), start)
        u = (start / unit).requires_grad_()
        optimiser = torch.optim.Adam([u])
        best: Found | None = None
        for iteration in range(1, self.iterations + 1):
            if best is not None and self.knowledge.time_left() <= RESERVE * self.slowest:
                break
            started = time.monotonic()
            current, u.grad = self._evaluate(matcher, u, unit, image)
            best = current if best is None else best.where(current.objectives < best.objectives, current)
            optimiser.param_groups[0]["lr"] = learning_rate * ramp(iteration / self.iterations)
            optimiser.step()
            with torch.no_grad():
                u.copy_(project(u * unit) / unit)
            self.made += 1
            self.slowest = max(self.slowest, time.monotonic() - started)
            if iteration % max(1, self.iterations // 5) == 0:
                self.knowledge.progress(f"{what}: iteration {iteration} of {self.iterations}")
        assert best is not None
        return best

    def _evaluate(
        self, matcher: Matcher, u: Tensor, unit: Tensor, image: Callable[[Tensor], Tensor]
    ) -> tuple[Found, Tensor]:
        """The objectives of the points u * unit, and their gradient with respect to u."""
        points = u * unit
        images = image(points)
        images = images.view(-1, self.records, *images.shape[1:])
        costs, slopes = matcher.slopes(images.detach())
        roughness = self.tv * total_variation(images)
        (direction,) = torch.autograd.grad(
            [images, roughness], [u], [slopes, torch.ones_like(roughness)]
        )  # the matcher differentiates up to the images; the generator continues from there
        return Found(points.detach(), images.detach(), costs + roughness.detach(), costs), direction


class Gifd(GradientMatching):
    """Gradient matching over the features of a generator, from its latent code to the image, layer by layer.

    With cost(x) = 1 - cosine(gradient of x, observed gradient) and objective J(x) = cost(x) + tv * TV(x):

    1. latent:   z* = argmin J(G(z)) on the sphere ||z|| = sqrt(dim), from several random starts
    2. features: for i = 1 ... 4, with h_i^0 = the next layer of the result of the layer before,
                 h_i* = argmin J(G_i(h_i)),  ||h_i - h_i^0||_1 <= radii[i] * ||h_i^0||_1
    3. the image of the stage with the smallest cost is the answer; the truth is never used.

    Each step is one step of Adam, in units of the root mean square of the starting point, and a projection. Radii are
    relative to the feature, whereas the paper gives absolute ones for its two pretrained networks. The generator is our
    own (`matching/generator.py`), trained only on the auxiliary images. All targets and restarts are optimised in
    parallel; the best iterate by J is kept. `stages: latent` searches only the code, as in GIAS (Jeon et al. 2021,
    without its tuning of the network) and GGL (Li et al. 2022, with gradients instead of CMA-ES). `generator:
    untrained` uses no auxiliary image: it is a network with random weights, and only its architecture is the prior
    (after Ulyanov et al. 2018, but with a search over its features instead of its weights).
    """

    name: ClassVar[str] = "gifd"
    citation: ClassVar[str] = "Fang et al., GIFD: A Generative Gradient Inversion Method with Feature Domain, ICCV 2023"

    iterations: int = Field(200, ge=1, le=1_000_000, description="per stage: the latent one and each of four layers")
    restarts: int = Field(4, ge=1, le=64, description="starts of the latent stage; the best one continues")
    stages: Literal["latent", "features"] = Field("features", description="where the search ends")
    generator: Literal["trained", "untrained"] = Field("trained", description="untrained: no auxiliary images")
    # feature_rate (0.03 or 0.1, on digits only), radii (0.03 on digits only, 0.1 or 0.5) and tv (1e-3 or 1e-2) were
    # chosen on six auxiliary victims, which the generator did not see, of digits and of CIFAR-10 (split seed 1000),
    # then frozen; for `untrained` only the distribution of its weights was chosen, on digits
    learning_rate: float = Field(0.1, gt=0, description="of the latent stage")
    feature_rate: float = Field(0.03, gt=0, description="of the layers")
    radii: tuple[float, float, float, float] = Field(
        (0.5, 0.5, 0.5, 0.5), description="of the l1 balls of the four layers"
    )
    tv: float = Field(1e-2, ge=0, description="weight of the total variation")
    latent: int = Field(128, ge=2, le=4096, description="dimension of the generator's code")
    width: int = Field(16, ge=2, le=256, description="channels of the generator's last feature")
    epochs: int = Field(30, ge=1, le=10_000, description="of the generator's training")
    generator_seed: int = Field(0, ge=0, description="all cells on the same auxiliary images share one generator")

    def budget(self) -> dict[str, int]:
        """Iterations over all stages, and restarts of the first stage."""
        return {"iterations": self.iterations * self._stages, "restarts": self.restarts}

    def work(self, problems: int) -> tuple[float, float]:
        """An iteration costs about three gradients. The generator is trained once per dataset and is not counted."""
        return 3.0 * self.iterations * (self.restarts + self._stages - 1) * problems, 0.0

    @property
    def _stages(self) -> int:
        return 1 + LAYERS if self.stages == "features" else 1

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert all problems in one optimisation."""
        problems = task.problems(knowledge)
        flags = [*gradient_flags(problems), *self.imitation_flags(knowledge, problems, sees_scale=False)]
        generator, finished = self._make_generator(knowledge)
        if not finished:
            flags.append(f"{STOPPED}: half of it was not enough to train the generator")
        search = Search(knowledge, problems[0].gradient.records, self.tv, self.iterations)
        informed = self.generator == "trained"  # in the strict setting labels are found without auxiliary images too
        labels = torch.stack([labels_of(knowledge, problem, auxiliary=informed) for problem in problems])
        images, costs = self._invert(search, generator, problems, labels)
        if search.made < self.iterations * self._stages:
            flags.append(f"{STOPPED} after {search.made} of {self.iterations * self._stages} iterations")
        costs = costs.nan_to_num(1.0)
        if float(costs.median()) > 0.5:
            flags.append("not converged: the median matching cost is above 0.5")
        found = {"matching_cost": float(costs.mean())}
        return ReconstructionAnswer(tuple(images.cpu()), tuple(flags), found, tuple(labels))

    def _make_generator(self, knowledge: Knowledge) -> tuple[Generator, bool]:
        """The generator, and whether there was enough time to train it completely."""
        settings = GeneratorSettings(self.latent, self.width, self.epochs, self.generator_seed)
        if self.generator == "untrained":
            made, finished = untrained_generator(knowledge.public.shape, settings), True
        else:
            auxiliary, seconds = knowledge.auxiliary.images, knowledge.time_left() / 2
            made, finished = trained_generator(auxiliary, settings, knowledge.progress, seconds)
        return made.to(knowledge.device), finished

    def _invert(
        self, search: Search, generator: Generator, problems: tuple[Inversion, ...], labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Images (P, M, C, H, W) and matching costs (P,) of P problems with M records each."""
        knowledge = search.knowledge
        imitations = self.imitations(knowledge, problems)
        matcher = partial(Matcher, knowledge.task, problems, labels, device=knowledge.device, imitations=imitations)
        start = _codes(knowledge, problems, self.restarts, self.latent)
        tried = search(
            matcher(restarts=self.restarts), start, generator.image, on_sphere, self.learning_rate, "latent code"
        )
        found = tried.best_restart(self.restarts)
        images, costs = found.images, found.costs
        if self.stages == "latent":
            return images, costs
        alone = matcher(restarts=1)
        for layer, radius in enumerate(self.radii, start=1):
            start = generator.next_feature(found.points, layer - 1)
            image = partial(generator.image, layer=layer)
            name = f"feature {layer} of {LAYERS}"
            found = search(alone, start, image, around(start, radius), self.feature_rate, name)
            better = found.costs < costs
            images = torch.where(_beside(better, images), found.images, images)
            costs = torch.where(better, found.costs, costs)
        return images, costs


def _codes(knowledge: Knowledge, problems: tuple[Inversion, ...], restarts: int, latent: int) -> Tensor:
    """Random starting codes (restarts * P * M, latent) on the sphere.

    The codes of each problem depend on the attack's seed and the problem's own gradient, not on other problems.
    """
    found = []
    for problem in problems:
        random = knowledge.generator_for(problem, "codes")
        found.append(torch.randn(restarts, problem.gradient.records, latent, generator=random))
    return on_sphere(torch.stack(found, dim=1).flatten(0, 2)).to(knowledge.device)
