"""Which records are in a batch, from a mean that the view holds and each candidate's own part of it.

A client's message is linear in its records: g = 1/B sum_b T(g_b). g_b follows from record b and a model that the
attacker knows. T is what the defense declares that it does to a record's gradient (`Defense.mimic_records`: clipping
multiplies it by c_b). So g itself reveals which candidates it is made of.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad, vmap

from leakboard.attacks.base import (
    TAKEN_FOR_GRADIENT,
    Knowledge,
    MembershipAnswer,
    MembershipAttack,
    MembershipTask,
)
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Gradient, Transform
from leakboard.federation.example_norms import CHUNK
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import VICTIM
from leakboard.federation.task import Task

#: largest relative error of a float32 client, with a margin; smaller singular values are rounding
ROUNDING = 1e-5
#: number of auxiliary records whose inputs are compared with those of the candidates
AUXILIARY = 500
#: the loss (a scalar) of one record: parameters, image (1, C, H, W) in [0, 1], target (1, classes)
Loss = Callable[[Parameters, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Mixture:
    """A mean of parts, one per record: the gradient of that record's loss with respect to the tensors in `mean`.

    The gradients are taken at `at`. `model` is the true model, and `transform` is what clients do to a record's
    gradient on it (None: nothing). If `at` is that model, the parts are these gradients themselves, and they are
    transformed. Otherwise they are multiplied by c_b, the factor by which the transform scales the record's gradient.
    """

    mean: Gradient
    at: Parameters
    loss: Loss
    model: Parameters
    transform: Transform | None


class BatchMembership(MembershipAttack):
    """Base of attacks that infer which records are in a batch.

    If the first layer is fully connected and the batch is smaller than the dimension of the inputs, the rows of that
    layer's part are combinations of the batch's inputs, so a member lies in their span. The score is then minus the
    logarithm of the relative distance from the span. Otherwise it is a ridge regression of the mean on the candidates'
    parts,

        min_w ||g - sum_i w_i T(g_i)||^2 + lambda sum_i w_i^2 ||T(g_i)||^2,   score_i = B w_i,

    which gives 1 for a member and 0 for others if all members are among the candidates and nothing is noisy. Auxiliary
    records are added to the candidates (`background`) to absorb the part of members that are not candidates. It is
    solved in the dual (N x N). Parts with more than `width` values are reduced by a count sketch first, which is
    linear. If the question is not about one batch, every observed batch is tried and the best score counts.
    """

    about: ClassVar[Literal["training", "batch"]] = "batch"
    threats: ClassVar[tuple[str, ...]] = ("server", "server+keys", "server+clients", "server:active")

    # chosen on seed 11 of quick's settings, mp-dp and fedsgd, first round, with all of the batch, a half and a quarter
    # among the candidates; tried: lambda 1e-8 to 0.1, 0 or 300 auxiliary records of weight 0.03 to 1
    ridge: float = Field(1e-5, gt=0, description="lambda")
    background: int = Field(300, ge=0, description="auxiliary records added to the candidates")
    width: int = Field(16_384, ge=64, description="how many values of a part are compared; larger parts are sketched")

    @abstractmethod
    def mixtures(self, knowledge: Knowledge, round_index: int) -> dict[str, Mixture]:
        """The means of one observed training round in the view, by owner."""

    def budget(self) -> dict[str, int]:
        """The number of auxiliary records added to the candidates."""
        return {"background": self.background}

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Score every candidate against the victim's batch of the task's round, or against all observed batches."""
        if knowledge.task.buffer_names:
            raise Unsupported("batch norm mixes the records of a batch: no record has its own part")
        mixtures = self._asked(knowledge, task)
        found = [self._judged(knowledge, task.candidates, mixture) for mixture in mixtures]
        scores = torch.stack([score for score, _, _ in found])
        decisions = torch.stack([decision for _, decision, _ in found]).any(0)
        ways = sorted({way for _, _, way in found})
        flags = [f"by {way}" for way in ways]
        if knowledge.public.training.is_local:
            flags.append(TAKEN_FOR_GRADIENT)
        numbers = self._numbers(mixtures[0]) if len(mixtures) == 1 else {}
        return MembershipAnswer(scores.amax(0), decisions, tuple(flags), numbers)

    def _numbers(self, mixture: Mixture) -> dict[str, float]:
        """What the record says about the mean, if only one was asked about."""
        return {}

    def _asked(self, knowledge: Knowledge, task: MembershipTask) -> list[Mixture]:
        """The mixtures that the task asks about."""
        observed = [o.context.round for o in knowledge.view.of_kind("train")]
        if task.round_index is None:
            every = [m for index in observed for m in self.mixtures(knowledge, index).values()]
            if not every:
                raise Unsupported(f"this view ({knowledge.view.threat}) holds no mean over a batch")
            return every
        if task.round_index not in observed:
            raise Unsupported(f"round {task.round_index} was not observed")
        held = self.mixtures(knowledge, task.round_index)
        owner = VICTIM if VICTIM in held else AGGREGATE
        if owner not in held:
            raise Unsupported(f"this view ({knowledge.view.threat}) holds no mean that includes the victim")
        return [held[owner]]

    def _judged(self, knowledge: Knowledge, candidates: LabelledImages, mixture: Mixture) -> tuple[Tensor, Tensor, str]:
        """Scores (N,), decisions (N,), and the method that gave them."""
        spanned = _by_span(knowledge, candidates.images, mixture.mean)
        if spanned is not None:
            return *spanned, "row space"
        pool = joined(candidates, knowledge.auxiliary.select(torch.arange(len(knowledge.auxiliary))[: self.background]))
        scores = self._by_regression(knowledge.task, pool, mixture)[: len(candidates)]
        # half of a member's coefficient; no evaluated record influences this
        return scores, scores > 0.5, "ridge regression"

    def _by_regression(self, task: Task, pool: LabelledImages, mixture: Mixture) -> Tensor:
        """B w_i (N,) of all records of the pool."""
        mean = mixture.mean.values
        sketch = Sketch(sum(value.numel() for value in mean.values()), max(self.width, 2 * len(pool)))
        target = sketch(flat({name: value[None] for name, value in mean.items()}))[0]
        parts = torch.cat([sketch(flat(part)) for part in transformed_parts(task, pool, mixture)])
        lengths = parts.norm(dim=1).clamp(min=1e-300)
        units = parts / lengths[:, None]
        gram = units @ units.T + self.ridge * torch.eye(len(units), dtype=torch.float64)
        weights = torch.linalg.solve(gram, units @ target) / lengths
        return torch.nan_to_num(mixture.mean.records * weights, 0, 0, 0)


class Sketch:
    """Count sketch (Charikar et al. 2002): values with random signs, summed in random buckets; linear."""

    def __init__(self, size: int, width: int) -> None:
        self.width = width if size > width else size
        generator = torch.Generator().manual_seed(0)
        self.buckets = torch.randint(self.width, (size,), generator=generator) if size > width else None
        self.signs = (2 * torch.randint(2, (size,), generator=generator) - 1).double()

    def __call__(self, values: Tensor) -> Tensor:
        """Sketch rows (N, size) to (N, width)."""
        if self.buckets is None:
            return values
        return torch.zeros(len(values), self.width, dtype=values.dtype).index_add_(1, self.buckets, values * self.signs)


def flat(parts: Parameters) -> Tensor:
    """Values (N, *shape) as one row each (N, size), in float64."""
    return torch.cat([part.flatten(1).double() for part in parts.values()], dim=1)


def parts_of(task: Task, data: LabelledImages, mixture: Mixture) -> Iterator[Parameters]:
    """Each record's own gradient (n, *shape) of the mixture's loss, in float64, chunk by chunk."""
    tensors = {name: mixture.at[name].double() for name in mixture.mean.values}
    targets = torch.nn.functional.one_hot(data.labels, task.public.classes).double()

    def loss(parameters: Parameters, image: Tensor, target: Tensor) -> Tensor:
        return mixture.loss(parameters, image[None], target[None])

    for images, wanted in zip(torch.split(data.images.double(), CHUNK), torch.split(targets, CHUNK), strict=True):
        found: Parameters = vmap(grad(loss), in_dims=(None, 0, 0))(tensors, images, wanted)
        yield found


def transformed_parts(task: Task, data: LabelledImages, mixture: Mixture) -> Iterator[Parameters]:
    """The parts (n, *shape) as clients weigh them in the mean, in float64, chunk by chunk."""
    if mixture.transform is not None and mixture.at is mixture.model:
        yield from map(mixture.transform, parts_of(task, data, mixture))
        return
    chunks = torch.split(record_factors(task, data, mixture.model, mixture.transform), CHUNK)
    for part, factors in zip(parts_of(task, data, mixture), chunks, strict=True):
        yield {name: value * factors.view(-1, *[1] * (value.ndim - 1)) for name, value in part.items()}


def record_factors(task: Task, data: LabelledImages, model: Parameters, transform: Transform | None) -> Tensor:
    """c_b = ||T(g_b)|| / ||g_b|| (N,) in float64, with g_b the gradient of record b on the true model; 1 without T."""
    if transform is None:
        return torch.ones(len(data), dtype=torch.float64)
    own = {name: value.detach() for name, value in model.items() if name in task.parameter_names}
    plain = Mixture(Gradient(own, 1, 1), own, own_loss(task), own, None)
    found = []
    for gradients in parts_of(task, data, plain):
        before, after = flat(gradients).norm(dim=1), flat(transform(gradients)).norm(dim=1)
        found.append(torch.where(before > 0, after / before, 1.0))
    return torch.cat(found) if found else torch.ones(0, dtype=torch.float64)


def own_loss(task: Task) -> Loss:
    """The training loss of one record."""

    def loss(parameters: Parameters, image: Tensor, target: Tensor) -> Tensor:
        return task.loss(task.logits(parameters, image), target)

    return loss


def _by_span(knowledge: Knowledge, images: Tensor, mean: Gradient) -> tuple[Tensor, Tensor] | None:
    """Scores and decisions by the span of the batch's inputs; None if the first layer does not reveal the span.

    The threshold is the middle, on a logarithmic scale, between the rounding error of a float32 client and the smallest
    distance of auxiliary records, none of which is in the batch.
    """
    task = knowledge.task
    first = mean.values[task.parameter_names[0]].double()
    if first.ndim != 2 or first.shape[1] != math.prod(task.public.shape) or not bool(first.isfinite().all()):
        return None
    others = _inputs(task, knowledge.auxiliary.images[:AUXILIARY])
    sizes = torch.linalg.svdvals(others)
    dimension = int((sizes > ROUNDING * sizes[0]).sum()) if len(sizes) else 0
    if mean.records >= min(dimension, *first.shape):
        return None
    _, sizes, rows = torch.linalg.svd(first, full_matrices=False)
    rank = min(mean.records, int((sizes > ROUNDING * sizes[0]).sum()))
    span = rows[:rank]
    scores, known = (-_distances(x, span).log() for x in (_inputs(task, images), others))
    threshold = 0.5 * (-math.log(ROUNDING) + float(known.max()))
    return scores, scores > threshold


def _inputs(task: Task, images: Tensor) -> Tensor:
    """The inputs of the network (N, D), scaled to length one."""
    flattened = task.normalise(images.double()).flatten(1)
    units: Tensor = flattened / flattened.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return units


def _distances(inputs: Tensor, span: Tensor) -> Tensor:
    """Distances of inputs (N, D) of length one from the span of orthonormal rows (rank, D)."""
    found: Tensor = (inputs - (inputs @ span.T) @ span).norm(dim=1).clamp(min=1e-12)
    return found
