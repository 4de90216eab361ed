"""Gradient matching: costs of candidate images against observed gradients, and the optimiser of the pixel attacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import grad, vmap

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.building_blocks.candidate_transform import CandidateTransform
from leakboard.attacks.reconstruction.matching.grouped import Network, grouped_gradients
from leakboard.attacks.reconstruction.matching.program import program_of
from leakboard.attacks.reconstruction.matching.traced import recording
from leakboard.federation.payload import Parameters
from leakboard.federation.separable import separable
from leakboard.federation.task import Task

#: number of candidate images whose gradients are held in memory at once (at least one problem, more if it is small)
IMAGES_AT_ONCE = 16
#: the written-out passes hold about this many times what a plain chunk of images holds (`separable`)
HELD = 3
#: values of the gradients of all problems at once: 64 MiB in float32
GRADIENT_VALUES = 2**24


class Slopes(Protocol):
    """What a descent on images needs: a cost for each problem, and its gradient."""

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,) and their gradients in the images (P, M, C, H, W)."""
        ...


class Matcher:
    """Cosine costs of candidate images against the observed gradients, for all problems at once.

    Three methods give the same gradients (tests/attacks/test_matching.py). Networks of known layers use the written-out
    passes of `Network`: all problems together, or one after the other if their convolutions differ. Other
    networks use vmap. With batch norm, whose statistics vmap cannot write, and for a single problem, they use plain
    automatic differentiation. The step of a single problem is recorded. `imitations`, one per problem,
    apply to the gradients what a defense did (adaptive attacks). Labels are classes (P, M) or targets (P, M, outputs).
    With a `size`, the cost also has size * log(||g(x)|| / ||g||)^2, because a cosine does not see the scale.
    """

    def __init__(
        self,
        task: Task,
        problems: tuple[Inversion, ...],
        labels: Tensor,
        restarts: int,
        device: str,
        imitations: tuple[CandidateTransform | None, ...] | None = None,
        dtype: torch.dtype = torch.float32,
        size: float = 0.0,
    ) -> None:
        self.task, self.size = task, size
        soft = labels if labels.ndim == 3 else torch.nn.functional.one_hot(labels, task.public.classes)
        self.labels = soft.to(device, dtype).repeat(restarts, 1, 1)  # soft labels: vmap has no one_hot
        rows = [[p.gradient.values[name].flatten() for name in task.parameter_names] for p in problems]
        raw = torch.stack([torch.cat([part.double() for part in row]) for row in rows])
        # of length one, so that tiny gradients (of a fitted model) are matched as well as large ones
        norms = raw.norm(dim=1).clamp(min=1e-300)
        unit = raw / norms[:, None]
        self.log_norms = norms.log().to(device, dtype).repeat(restarts)
        sizes = [part.numel() for part in rows[0]]
        shapes = [problems[0].gradient.values[name].shape for name in task.parameter_names]
        pieces = zip(unit.to(device, dtype).repeat(restarts, 1).split(sizes, 1), shapes, strict=True)
        self.targets = [_in_order(piece.view(-1, *shape)) for piece, shape in pieces]
        self.imitations = imitations * restarts if imitations is not None else (None,) * (restarts * len(problems))
        needed = {i.parts if i is not None else 1 for i in self.imitations}
        #: gradients per problem: one for all its images, or one for each of this many equal parts of them
        self.parts = needed.pop() if len(needed) == 1 else labels.shape[1]
        first = problems[0].model
        others = [p.model for p in problems if p.model is not first]
        #: the tensors that differ between problems; they are stacks (P, *shape)
        self.own = frozenset(n for n in first if any(not torch.equal(m[n], first[n]) for m in others))
        models = [p.model for p in problems] * restarts
        self.models: Parameters = {
            n: (torch.stack([_cast(m[n], dtype) for m in models]) if n in self.own else _cast(first[n], dtype)).to(
                device
            )
            for n in first
        }
        self._networks: dict[tuple[int, int], Network] = {}
        self.program = program_of(task.skeleton(), task.public.shape)
        #: whether the gradients of all problems are computed together; their convolutions must be the same
        self.grouped = self.program is not None and not any(first[n].ndim == 4 for n in self.own)

    @property
    def shared(self) -> bool:
        """Whether all problems use one model."""
        return not self.own

    def _models(self, part: slice | int) -> Parameters:
        """The models of some problems, with stacks restricted to them."""
        return {name: t[part] if name in self.own else t for name, t in self.models.items()}

    def costs(self, images: Tensor) -> Tensor:
        """1 - cosine (P,) for candidate images (P, M, C, H, W) in [0, 1]; differentiable in the images."""
        with torch.enable_grad():  # the gradients of the parameters are always needed
            found = self._costs(images, slice(None))
        return found if torch.is_grad_enabled() and images.requires_grad else found.detach()

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (P,) and their gradients in the images (P, M, C, H, W), a few problems at a time to bound memory."""
        size = self._at_once(images.shape[1])
        costs: list[Tensor] = []
        slopes: list[Tensor] = []
        for start in range(0, len(images), size):
            part = slice(start, start + size)
            cost, slope = self._alone(images) if len(images) == 1 else self._slopes(images[part], part)
            # a candidate without any gradient has no slope: it stays where it is and does not become NaN
            slopes.append(slope.nan_to_num(0, 0, 0))
            costs.append(cost)
        return torch.cat(costs), torch.cat(slopes)

    def _at_once(self, records: int) -> int:
        """How many problems of this many images are computed together: more of them where the network is small."""
        size = max(1, IMAGES_AT_ONCE // records)
        small = separable(self.task.skeleton(), self.task.public.shape) if self.grouped else None
        if small is None:
            return size
        values = self.parts * sum(target[0].numel() for target in self.targets)
        return max(size, min(small.chunk // HELD // records, GRADIENT_VALUES // values))

    def _slopes(self, images: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        candidates = images.detach().requires_grad_()
        cost = self._costs(candidates, part)
        return cost.detach(), torch.autograd.grad(cost.sum(), candidates)[0]

    def _alone(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a single problem; recorded if the cost is only the cosine and there are no buffers."""
        other = type(self) is not Matcher or self.size or self.imitations[0] is not None
        if other or self.task.buffer_names:
            return self._slopes(images, slice(None))
        names = self.task.parameter_names

        def step(images: Tensor, labels: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
            candidates = images.detach().requires_grad_()
            model = dict(zip(names, rest, strict=False))
            if self.program is not None:
                found = Network(self.task, model, *images.shape[:2]).gradients(candidates, labels)
            else:
                found = [g[None] for g in self._one(model, candidates[0], labels[0])]
            cost = _Misfit.apply(list(rest[len(names) :]), *(_in_order(g) for g in found))  # type: ignore[no-untyped-call]
            return cost.detach(), torch.autograd.grad(cost.sum(), candidates)[0]

        recorded = recording(self.task, images.shape, self.labels.shape, images.device, images.dtype)
        return recorded(step, (images, self.labels, *self._weights, *self.targets))

    @cached_property
    def _weights(self) -> list[Tensor]:
        """The first problem's parameters, in the memory layout for convolutions."""
        model = self._models(0)
        return [self.task.arranged(model[name]) for name in self.task.parameter_names]

    def _costs(self, images: Tensor, part: slice) -> Tensor:
        found = self._gradients(images, part)
        imitations = self.imitations[part]
        if any(i is not None for i in imitations):
            found = self._imitated(found, imitations)
        costs: Tensor = _Misfit.apply([t[part] for t in self.targets], *(_in_order(g) for g in found))  # type: ignore[no-untyped-call]
        if not self.size:
            return costs
        norms = _norms([_in_order(g) for g in found]).clamp(min=1e-30)
        scale: Tensor = self.size * (norms.log() - self.log_norms[part]).square()
        return torch.add(costs, scale)

    def _imitated(self, gradients: list[Tensor], imitations: tuple[CandidateTransform | None, ...]) -> list[Tensor]:
        """Each problem's gradient (P, *shape), from the gradients of its parts (P * parts, *shape)."""
        names, plain = self.task.parameter_names, CandidateTransform(1, 1, None, None)
        pieces = zip(*(torch.split(g, self.parts) for g in gradients), strict=True)
        rows = [
            (imitation or plain)(dict(zip(names, piece, strict=True)))
            for imitation, piece in zip(imitations, pieces, strict=True)
        ]
        return [torch.cat([row[name] for row in rows]) for name in names]

    def _gradients(self, images: Tensor, part: slice) -> list[Tensor]:
        """Parameter gradients of each problem's parts, each (P * parts, *shape of the parameter)."""
        labels, models = self.labels[part], self._models(part)
        if self.parts > 1:
            images, labels = (t.reshape(len(t) * self.parts, -1, *t.shape[2:]) for t in (images, labels))
            models = {n: t.repeat_interleave(self.parts, 0) if n in self.own else t for n, t in models.items()}
        if self.grouped:
            return self._network(models, images).gradients(images, labels)
        if self.program is None and len(images) > 1 and not self.task.buffer_names:
            return self._mapped(models, images, labels)
        rows = [
            self._one({n: t[i] if n in self.own else t for n, t in models.items()}, x, y)
            for i, (x, y) in enumerate(zip(images, labels, strict=True))
        ]
        return [torch.stack(column) for column in zip(*rows, strict=True)]

    def _network(self, models: Parameters, images: Tensor) -> Network:
        """The network of all problems of this number; the same for each part if they share one model."""
        problems, records = images.shape[:2]
        if self.own:
            return Network(self.task, models, problems, records, self.own)
        if (problems, records) not in self._networks:
            self._networks[problems, records] = Network(self.task, models, problems, records)
        return self._networks[problems, records]

    def _mapped(self, models: Parameters, images: Tensor, labels: Tensor) -> list[Tensor]:
        weights = {name: models[name] for name in self.task.parameter_names}
        batched = vmap(grad(self._loss), in_dims=({name: 0 if name in self.own else None for name in weights}, 0, 0))
        found: Parameters = batched(weights, images, labels)
        return [found[name] for name in self.task.parameter_names]

    def _loss(self, weights: Parameters, images: Tensor, labels: Tensor) -> Tensor:
        return self.task.loss(self.task.logits(weights, images, train=True), labels)

    def _one(self, model: Parameters, images: Tensor, labels: Tensor) -> Sequence[Tensor]:
        if self.program is not None:
            return [g[0] for g in grouped_gradients(self.task, model, images[None], labels[None])]
        arranged = self.task.arranged
        weights = {name: arranged(model[name].detach()).requires_grad_() for name in self.task.parameter_names}
        buffers = {name: model[name].clone() for name in self.task.buffer_names}
        loss = self._loss({**weights, **buffers}, arranged(images), labels)
        return torch.autograd.grad(loss, list(weights.values()), create_graph=True)


class _Misfit(torch.autograd.Function):
    """1 - <g, t> / ||g|| of gradients in pieces (P, n_i) against unit targets in pieces, without copying either."""

    @staticmethod
    def forward(ctx: Any, targets: list[Tensor], *pieces: Tensor) -> Tensor:
        """Costs (P,); 1 if there is no gradient."""
        dots = torch.stack([torch.linalg.vecdot(g, t) for g, t in zip(pieces, targets, strict=True)])
        squares = torch.stack([torch.linalg.vecdot(g, g) for g in pieces])
        ctx.dot, ctx.norm = dots.double().sum(0), squares.double().sum(0).sqrt()
        ctx.targets = targets
        ctx.save_for_backward(*pieces)
        costs: Tensor = 1 - ctx.dot / ctx.norm.clamp(min=1e-30)
        return costs.to(pieces[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, along: Tensor) -> Any:
        """dot g / ||g||^3 - t / ||g||; 0 if there is no gradient."""
        inverse = torch.where(ctx.norm > 0, 1 / ctx.norm, 0)
        of_target = (-along * inverse).to(along)[:, None]
        of_piece = (along * ctx.dot * inverse**3).to(along)[:, None]
        slopes = zip(ctx.saved_tensors, ctx.targets, strict=True)
        return None, *((g * of_piece).addcmul_(t, of_target) for g, t in slopes)


def misfits(seen: list[Tensor], made: list[Tensor], size: float) -> Tensor:
    """1 - cosine + size * log(||made|| / ||seen||)^2 (P,) of gradients in pieces (P, n_i); differentiable in `made`."""
    norms = _norms(seen).clamp(min=1e-30)
    costs: Tensor = _Misfit.apply([t / norms[:, None] for t in seen], *made)  # type: ignore[no-untyped-call]
    scale: Tensor = size * (_norms(made).clamp(min=1e-30).log() - norms.log()).square()
    return torch.add(costs, scale)


def _norms(pieces: list[Tensor]) -> Tensor:
    return torch.stack([g.square().sum(1) for g in pieces]).sum(0).sqrt()


def _in_order(gradients: Tensor) -> Tensor:
    """Gradients (P, *shape) to (P, n), the channels of a kernel last, as the written-out passes hold them."""
    return (gradients.movedim(2, -1) if gradients.ndim == 5 else gradients).flatten(1)


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def starting_points(knowledge: Knowledge, problems: tuple[Inversion, ...], restarts: int) -> Tensor:
    """Noise (restarts * P, M, C, H, W) around mid-grey, in image units.

    The noise of each problem depends on the attack's seed and the problem's own gradient, not on other problems.
    """
    found = []
    for problem in problems:
        generator = knowledge.generator_for(problem, "start")
        shape = (restarts, problem.gradient.records, *knowledge.public.shape)
        found.append(torch.randn(shape, generator=generator))
    return (0.5 + 0.25 * torch.stack(found, dim=1).flatten(0, 1)).clamp(0, 1).to(knowledge.device)


class SignedAdam:
    """Adam (Kingma and Ba 2015) on the sign of the gradient, decayed by 0.1 at 3/8, 5/8 and 7/8 of the steps."""

    def __init__(self, x: Tensor, learning_rate: float, steps: int) -> None:
        self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)
        self.learning_rate, self.steps, self.taken = learning_rate, steps, 0

    @property
    def decays(self) -> int:
        """How often the next step's size has been decayed."""
        return sum(self.taken >= self.steps * part / 8 for part in (3, 5, 7))

    def step(self, x: Tensor, direction: Tensor) -> Tensor:
        """Take one step from `x`; returns the next point."""
        decay = 0.1**self.decays
        self.taken += 1
        sign = direction.sign()
        self.first = 0.9 * self.first + 0.1 * sign
        self.second = 0.999 * self.second + 0.001 * sign.square()
        mean = self.first / (1 - 0.9**self.taken)
        scale = (self.second / (1 - 0.999**self.taken)).sqrt() + 1e-8
        return x - self.learning_rate * decay * mean / scale


def total_variation(x: Tensor) -> Tensor:
    """TV (P,) of candidates (P, M, C, H, W): mean absolute difference of neighbours, both directions.

    A side of one pixel has no neighbours and adds nothing.
    """
    height, width = x.shape[-2:]
    none = x.new_zeros(len(x))
    vertical = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1) if height > 1 else none
    horizontal = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1) if width > 1 else none
    return vertical + horizontal
