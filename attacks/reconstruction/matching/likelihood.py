"""How likely an observed gradient is for candidate images, if the distribution of its noise is known.

Given R, the noise on value i of a recovered gradient has a known standard deviation s_i, or a known bound b_i if it
is uniform. For the gradient g(x) of candidate images and the observed g:

    Gaussian   -2 log p = sum_i (g_i(x) - g_i)^2 / s_i^2 + const
    uniform    p = const where |g_i(x) - g_i| <= b_i for all i, else 0; as a penalty: the excess
               sum_i max(0, |g_i(x) - g_i| / b_i - 1)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, vmap

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.matching.gradients import Matcher, Slopes
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Noise, Transform
from leakboard.federation.example_norms import CHUNK
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: relative rounding of what a float32 client sends, which is always present as noise
ROUNDING = 1e-6


@dataclass(frozen=True)
class Law:
    """One problem's observed gradient (D,), the inverse deviations (D,) of its noise, and the bounds (D,) if uniform.

    `transforms` are what the defense declares that it does to gradients (clipping), in order. `shapes` are the shapes
    of the parts of a gradient by name, which the transforms need.
    """

    observed: Tensor
    precision: Tensor
    bound: Tensor | None
    transforms: tuple[Transform, ...] = ()
    shapes: Mapping[str, torch.Size] = field(default_factory=dict)

    def sent(self, gradients: Tensor) -> Tensor:
        """Gradients (N, D) as a client sends them, each transformed separately."""
        if not self.transforms:
            return gradients
        rows = torch.split(gradients, [shape.numel() for shape in self.shapes.values()], dim=1)
        parts = {n: row.reshape(-1, *shape) for (n, shape), row in zip(self.shapes.items(), rows, strict=True)}
        for transform in self.transforms:
            parts = transform(parts)
        return torch.cat([parts[name].flatten(1) for name in self.shapes], dim=1)

    def misfit(self, gradients: Tensor) -> Tensor:
        """-2 log p (N,) of gradients (N, D) under Gaussian noise, minus its value for a gradient of zero."""
        scaled = gradients * self.precision
        return (scaled * (scaled - 2 * self.observed * self.precision)).sum(1)

    def energy(self, gradients: Tensor) -> Tensor:
        """sum_i g_i^2 / s_i^2 (N,): the size of gradients in units of the noise."""
        return (gradients * self.precision).square().sum(1)

    def excess(self, gradients: Tensor) -> Tensor:
        """The penalty (N,) of gradients outside the bounds."""
        if self.bound is None:
            return gradients.new_zeros(len(gradients))
        return ((gradients - self.observed).abs() / self.bound - 1).clamp(min=0).sum(1)

    def outside(self, gradients: Tensor) -> Tensor:
        """The number of values (N,) of gradients outside the bounds."""
        if self.bound is None:
            return gradients.new_zeros(len(gradients))
        return ((gradients - self.observed).abs() > self.bound).sum(1).to(gradients)


def law_of(task: Task, problem: Inversion, noise: Noise, transforms: tuple[Transform, ...], device: str) -> Law:
    """The law of a problem's gradient; rounding counts as noise too."""
    names = task.parameter_names
    observed = torch.nan_to_num(flat(problem.gradient.values, names), 0, 0, 0)
    rounding = ROUNDING * observed.abs() + 1e-30
    precision = 1 / torch.hypot(flat(noise.deviation, names), rounding)
    bound = flat(noise.bound, names) + rounding if noise.bound is not None else None
    shapes = {name: problem.gradient.values[name].shape for name in names}
    cast = [None if t is None else t.to(device, torch.float32) for t in (observed, precision, bound)]
    assert cast[0] is not None
    assert cast[1] is not None
    return Law(cast[0], cast[1], cast[2], transforms, shapes)


def flat(values: Parameters, names: tuple[str, ...]) -> Tensor:
    """All values (D,) in float64, in this order."""
    return torch.cat([values[name].double().flatten() for name in names])


class LikelihoodMatcher(Matcher):
    """Costs of candidate images by the distribution of the noise instead of the cosine; one law per problem.

    Gaussian: weight * misfit / energy, which is on average -weight for the truth and 0 for a gradient of zero. Uniform:
    excess over the usual excess, which is 0 for the truth. Energy and the usual excess are averages over auxiliary
    records. The weight is below 1 if the noise leaves little information (energy below `ENOUGH`): the image prior then
    counts more.
    """

    def __init__(
        self,
        task: Task,
        problems: tuple[Inversion, ...],
        labels: Tensor,
        restarts: int,
        device: str,
        laws: tuple[Law, ...],
        scales: tuple[Scales, ...],
    ) -> None:
        super().__init__(task, problems, labels, restarts, device)
        self.laws, self.scales = laws * restarts, scales * restarts

    def _costs(self, images: Tensor, part: slice) -> Tensor:
        gradients = torch.cat([g.flatten(1) for g in self._gradients(images, part)], dim=1)
        rows = zip(self.laws[part], self.scales[part], gradients, strict=True)
        return torch.cat([scales.cost(law, law.sent(row[None])) for law, scales, row in rows])


#: energy of a gradient, in squared deviations of the noise, above which the data need no image prior
ENOUGH = 100.0


@dataclass(frozen=True)
class Scales:
    """Averages over the gradients of auxiliary records under a problem's law (over all its rounds).

    `energy`, `excess` and values `outside` are as `Law` defines them.
    """

    energy: float
    excess: float
    outside: float

    @property
    def informative(self) -> bool:
        """Whether the noise leaves any information: an energy below 1 changes a log-likelihood by less than 1."""
        return self.energy >= 1 or self.outside >= 1

    def cost(self, law: Law, gradients: Tensor) -> Tensor:
        """The cost (N,) of gradients (N, D)."""
        if law.bound is not None:
            return law.excess(gradients) / max(self.excess, 1e-30)
        return min(1.0, self.energy / ENOUGH) * law.misfit(gradients) / max(self.energy, 1e-30)


class ImagePrior:
    """Auxiliary images as a Gaussian: weight / (2 D) (x - mean)^T (C + floor I)^-1 (x - mean), D values per image."""

    def __init__(self, images: Tensor, weight: float, device: str, floor: float = 1e-3) -> None:
        data = images.flatten(1).to(device, torch.float64)
        self.weight, self.floor, self.mean = weight, floor, data.mean(0)
        self.centred = (data - self.mean) / math.sqrt(len(data))  # C is its Gram matrix
        inner = self.centred @ self.centred.T
        self.solver = torch.linalg.inv(inner + floor * torch.eye(len(inner), dtype=inner.dtype, device=device))

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,), the mean over a problem's images, and their gradients (P, M, C, H, W)."""
        away = images.double().flatten(2) - self.mean
        # Woodbury: (C + f I)^-1 = (I - Z^T (Z Z^T + f I)^-1 Z) / f
        pulled = (away - away @ self.centred.T @ self.solver @ self.centred) / self.floor
        slope = self.weight * pulled / (images.shape[1] * away.shape[2])
        return (0.5 * away * slope).sum((1, 2)).to(images), slope.view(images.shape).to(images)


class Joint:
    """The sum of several costs: the same images seen on several models, and an image prior."""

    def __init__(self, matchers: Sequence[Slopes]) -> None:
        self.matchers = matchers

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,) and their gradients in the images, summed over the matchers."""
        found = [matcher.slopes(images) for matcher in self.matchers]
        return torch.stack([c for c, _ in found]).sum(0), torch.stack([s for _, s in found]).sum(0)


@dataclass(frozen=True)
class References:
    """Auxiliary records under the laws of some problems: the values of `Law` for each record (P, N).

    The log-likelihood of uniform noise is taken as minus the number of values outside the bounds. Minus infinity would
    leave no record, because none of them is the record itself.
    """

    records: LabelledImages
    likelihood: Tensor
    energy: Tensor
    excess: Tensor
    outside: Tensor

    def plus(self, other: References) -> References:
        """The same records, with another observation (another round) added."""
        return References(
            self.records,
            self.likelihood + other.likelihood,
            self.energy + other.energy,
            self.excess + other.excess,
            self.outside + other.outside,
        )

    def scales(self) -> tuple[Scales, ...]:
        """The means over the records."""
        rows = torch.stack([self.energy, self.excess, self.outside]).mean(2).T.tolist()
        return tuple(Scales(*row) for row in rows)

    def label(self, problem: int, classes: int) -> Tensor:
        """The likeliest label (1,) of a single record, by the mean likelihood of the auxiliary records that have it."""
        found = torch.full((classes,), -torch.inf, dtype=torch.float64)
        for label in range(classes):
            own = self.likelihood[problem, self.records.labels == label]
            if len(own):
                found[label] = own.logsumexp(0) - torch.tensor(float(len(own))).log()
        return found.argmax()[None]

    def posterior_mean(self, problem: int) -> Tensor:
        """The mean image (C, H, W), with each record weighted by the likelihood of the observation."""
        weights = self.likelihood[problem].softmax(0).to(self.records.images)
        return torch.einsum("n,nchw->chw", weights, self.records.images)


def references(knowledge: Knowledge, model: Parameters, laws: tuple[Law, ...], count: int) -> References:
    """The first `count` auxiliary records, each as a batch of one on this model, under every law."""
    task = knowledge.task
    data = knowledge.auxiliary.select(torch.arange(min(count, len(knowledge.auxiliary))))
    weights = {name: model[name].to(knowledge.device) for name in task.parameter_names}
    buffers = {name: model[name].to(knowledge.device) for name in task.buffer_names}
    targets = torch.nn.functional.one_hot(data.labels, task.public.classes)

    def loss(parameters: Parameters, image: Tensor, target: Tensor) -> Tensor:
        return task.loss(task.logits({**parameters, **buffers}, image[None]), target[None])

    columns = []
    for images, wanted in zip(torch.split(data.images, CHUNK), torch.split(targets, CHUNK), strict=True):
        pictures = images.to(knowledge.device, task.dtype)
        found: Parameters = vmap(grad(loss), in_dims=(None, 0, 0))(weights, pictures, wanted.to(pictures))
        plain = torch.cat([found[name].flatten(1) for name in task.parameter_names], dim=1).float()
        rows = []
        for law in laws:
            own = law.sent(plain)
            rows.append(torch.stack([law.misfit(own), law.energy(own), law.excess(own), law.outside(own)]))
        columns.append(torch.stack(rows, dim=1).cpu())  # (4, P, n)
    misfit, energy, excess, outside = torch.cat(columns, dim=2).double()
    bounded = torch.tensor([law.bound is not None for law in laws])[:, None]
    return References(data, torch.where(bounded, -outside, -0.5 * misfit), energy, excess, outside)
