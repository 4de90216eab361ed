"""Phi and Psi of a batch, as gradients of one network that can be computed for any candidate images.

Let a = c alpha and z_d = c' (W h + b) . d be the outputs of the true network (c, c' make their last weights as long as
the true ones), t_bd = c' onehot(y_b) . d the values of the labels, and k_b the clipping factors. Then

    c^2 Phi     = grad mean_b k_b a_b^2 / 2,
    c c' Psi_u  = grad mean_b k_b a_b (z_b - t_b) . u       for any combination u of the directions d,

with respect to all layers except the last. For the last layer both contain mean_b k_b a_b h_b: the first as the
gradient of the row of a, the second as u times that of the rows of z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.reconstruction.matching.gradients import IMAGES_AT_ONCE, misfits
from leakboard.attacks.reconstruction.matching.grouped import Network
from leakboard.attacks.reconstruction.matching.program import program_of
from leakboard.attacks.reconstruction.perturbation.psi import gradient_norms
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: number of iterations after which the clipping factors are recomputed at the current images
RECOMPUTED = 10


@dataclass(frozen=True)
class Batch:
    """Candidates of P problems: images (P, M, C, H, W), values t of labels (P, M, D), clipping factors k (P, M)."""

    images: Tensor
    values: Tensor
    factors: Tensor


class Streams:
    """The two gradients, Phi's and Psi_u's, of P problems: those of candidates, and the observed ones."""

    def __init__(self, task: Task, given: Sequence[CleanParts], device: str) -> None:
        self.task, self.given, self.device = task, given, device
        self.last, first = given[0].last, given[0].model
        lengths = [_lengths(parts) for parts in given]

        def stack(part: Callable[[CleanParts, Tensor, Tensor], Tensor]) -> Tensor:
            """One tensor per problem, from its parts, c and c'."""
            return self._cast(torch.stack([part(p, c, d) for p, (c, d) in zip(given, lengths, strict=True)]))

        #: the tensors that differ between problems, as stacks (P, *shape); the others are in `shared`
        self.own: Parameters = {
            f"{self.last}.weight": stack(lambda p, c, d: torch.cat([c * p.head[None], d * p.directions @ p.weight]))
        }
        #: c mean k alpha h and, if the last layer has a bias, c mean k alpha
        self.mixed = [stack(lambda p, c, d: c * p.features)]
        if given[0].offset is not None:
            self.own[f"{self.last}.bias"] = stack(
                lambda p, c, d: torch.cat([d.new_zeros(1), d * p.directions @ p.bias])
            )
            self.mixed.append(stack(lambda p, c, d: c * _offset(p)))
        self.inner = [n for n in task.parameter_names if n not in self.own]
        for n in self.inner:
            if any(not torch.equal(p.model[n], first[n]) for p in given):
                self.own[n] = self._cast(torch.stack([p.model[n] for p in given]))
        self.shared: Parameters = {n: self._cast(v) for n, v in first.items() if n not in self.own}
        self.directions = stack(lambda p, c, d: d * p.directions)
        self.phi = [stack(lambda p, c, d, n=n: c * c * p.phi[n]) for n in self.inner]  # type: ignore[misc]
        self.psi = [stack(lambda p, c, d, n=n: c * d * p.psi[n]) for n in self.inner]  # type: ignore[misc]
        kernels = any(value.ndim == 5 for value in self.own.values())
        self.grouped = not kernels and program_of(task.skeleton(), task.public.shape) is not None

    def _cast(self, value: Tensor) -> Tensor:
        return (value.float() if value.is_floating_point() else value).to(self.device)

    @property
    def width(self) -> int:
        """The number of directions d."""
        return self.directions.shape[1]

    def values(self, labels: Tensor, problems: Tensor) -> Tensor:
        """t (P, M, D) of labels (P, M) in these problems (P,)."""
        onehot = torch.nn.functional.one_hot(labels, self.directions.shape[2]).to(self.directions)
        return onehot @ self.directions[problems].transpose(1, 2)

    def seen(self, along: Tensor, problems: Tensor) -> list[Tensor]:
        """The observed gradients in pieces (2 P, n) for the problems (P,): all Phi, then all Psi_u, u = along (D,)."""
        pieces = [
            torch.cat([phi[problems], torch.einsum("d,pd...->p...", along, psi[problems])]).flatten(1)
            for phi, psi in zip(self.phi, self.psi, strict=True)
        ]
        return pieces + [torch.cat([mean[problems], along.norm() * mean[problems]]) for mean in self.mixed]

    def made(self, batch: Batch, along: Tensor, problems: Tensor) -> list[Tensor]:
        """The same (2 P, n) for candidates of these problems (P,); differentiable in the images."""
        count, records = batch.images.shape[:2]
        twice = torch.cat([batch.images, batch.images])
        own = {name: torch.cat([value[problems], value[problems]]) for name, value in self.own.items()}
        factors, values = batch.factors.flatten(), batch.values.flatten(0, 1)

        def loss(outputs: Tensor) -> Tensor:
            phi, psi = outputs[: count * records, 0], outputs[count * records :]
            both = 0.5 * phi.square() + psi[:, 0] * ((psi[:, 1:] - values) @ along)
            return (factors * both).sum() / records

        found = self._gradients(twice, own, loss)
        inner = [found[name].flatten(1) for name in self.inner]
        ends = [found[f"{self.last}.{name}"] for name in ("weight", "bias") if f"{self.last}.{name}" in found]
        unit = along / along.norm().clamp(min=1e-30)
        mixed = [
            torch.cat([e[:count, 0], torch.einsum("d,pd...->p...", unit, e[count:, 1:])]).reshape(2 * count, -1)
            for e in ends
        ]
        return inner + mixed

    def _gradients(self, images: Tensor, own: Parameters, loss: Callable[[Tensor], Tensor]) -> Parameters:
        """Gradients (P, *shape) of all parameters, for all problems at once or one after the other."""
        names = self.task.parameter_names
        model = {**self.shared, **own}
        if self.grouped:
            network = Network(self.task, model, images.shape[0], images.shape[1], own)
            return dict(zip(names, network.slopes(images, loss), strict=True))
        leaves = [
            {n: (own[n][i] if n in own else self.shared[n]).detach().requires_grad_() for n in names}
            for i in range(len(images))
        ]
        outputs = [self.task.logits(leaf, x, train=True) for leaf, x in zip(leaves, images, strict=True)]
        every = [leaf[name] for leaf in leaves for name in names]
        found = torch.autograd.grad(loss(torch.cat(outputs)), every, create_graph=True)
        return {name: torch.stack(found[index :: len(names)]) for index, name in enumerate(names)}


class BatchMatcher:
    """Costs of candidate batches against Phi and Psi, for given labels; clipping factors are computed on the fly.

    The cost is the mean over Phi and Psi_u of 1 - cosine + size log(||g(x)|| / ||g||)^2. V2 has one u. V1 has one
    direction per class, and each iteration uses another random combination u of them: all directions in the long run,
    at the price of one. The factors k_b = min(1, B / ||g_b||) are recomputed from the candidates every `RECOMPUTED`
    iterations, as constants.
    """

    def __init__(self, streams: Streams, labels: Tensor, restarts: int, size: float, seed: int) -> None:
        self.streams, self.size = streams, size
        self.problems = torch.arange(len(labels)).repeat(restarts)
        self.labels = labels.to(streams.device).repeat(restarts, 1)
        self.values = streams.values(self.labels, self.problems)
        self.factors = torch.ones(self.labels.shape, device=streams.device)
        self.random = torch.Generator().manual_seed(seed)
        self.calls = 0

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,) and their gradients in the images (P, M, C, H, W), a few problems at a time to bound memory."""
        if self.calls % RECOMPUTED == 0:
            self._recompute(images)
        self.calls += 1
        along = self._along().to(images)
        size = max(1, IMAGES_AT_ONCE // images.shape[1])
        found = [self._slopes(images, along, at) for at in torch.split(torch.arange(len(images)), size)]
        costs, slopes = zip(*found, strict=True)
        return torch.cat(costs), torch.cat(slopes).nan_to_num(0, 0, 0)

    def _slopes(self, images: Tensor, along: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        candidates = images[at].detach().requires_grad_()
        problems = self.problems[at]
        batch = Batch(candidates, self.values[at], self.factors[at])
        with torch.enable_grad():
            made = self.streams.made(batch, along, problems)
        costs = misfits(self.streams.seen(along, problems), made, self.size).view(2, -1).mean(0)
        return costs.detach(), torch.autograd.grad(costs.sum(), candidates)[0]

    def _along(self) -> Tensor:
        """The combination u (D,) of this iteration, of length one."""
        if self.streams.width == 1:
            return torch.ones(1)
        drawn = torch.randn(self.streams.width, generator=self.random)
        unit: Tensor = drawn / drawn.norm()
        return unit

    def _recompute(self, images: Tensor) -> None:
        for index, (problem, own) in enumerate(zip(self.problems.tolist(), images, strict=True)):
            data = LabelledImages(own.detach().cpu(), self.labels[index].cpu())
            factors = clip_factors(self.streams.task, self.streams.given[problem], data)
            self.factors[index] = factors.to(self.factors)


def clip_factors(task: Task, parts: CleanParts, data: LabelledImages) -> Tensor:
    """The factors (N,) by which records are clipped on the true model."""
    if parts.clip is None:
        return torch.ones(len(data), dtype=torch.float64)
    return (parts.clip / gradient_norms(task, parts, data)).clamp(max=1)


def _lengths(parts: CleanParts) -> Tensor:
    """The scales c and c' as one tensor (2,)."""
    true = parts.weight.norm(dim=1).mean()
    rows = (parts.directions @ parts.weight).norm(dim=1).mean()
    return torch.stack([true / parts.head.norm().clamp(min=1e-300), true / rows.clamp(min=1e-300)])


def _offset(parts: CleanParts) -> Tensor:
    """mean alpha (1,) if the last layer has a bias."""
    assert parts.offset is not None
    return parts.offset
