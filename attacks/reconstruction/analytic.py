"""Closed-form inversion through a fully connected first layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import (
    STOPPED,
    Inversion,
    Knowledge,
    ReconstructionAnswer,
    ReconstructionAttack,
    ReconstructionTask,
    gradient_flags,
)
from leakboard.attacks.reconstruction.closed_form.disaggregation import Factors, factorisations, has_rank, oriented
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.core.errors import Unsupported
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: share of a record's active neurons that its image must really activate
AGREEMENT = 0.99
#: a draw hits one of B records with probability 2^(1 - B): with more records no number of draws would suffice
MOST_RECORDS = 20
#: a misfit of a record below which nothing else is tried
EXACT = 1e-4
#: points of the search for the scale: first over three decades, then around each minimum
COARSE, FINE, ZOOMS = 41, 15, 8


@dataclass(frozen=True)
class _Found:
    """Inputs (B, D) and labels (B,) of one problem, and the relative distance of their gradient from the observed."""

    inputs: Tensor
    labels: Tensor
    residual: float


@dataclass(frozen=True)
class _Scaled:
    """One record's scale c, label and clipping factor (scalars), and the relative misfit that remains."""

    scale: Tensor
    label: Tensor
    factor: Tensor
    misfit: float


class Analytic(ReconstructionAttack):
    """Exact images from the gradient of a fully connected first layer; batches by sparse disaggregation.

    The layer z = W x + b has dL/dW = 1/B sum_b delta_b x_b^T and dL/db = 1/B sum_b delta_b, with delta_b = dL_b/dz_b.
    For one record every row of dL/dW is a multiple of x. For B records, delta_b is zero where the ReLU was off, which
    separates the records (see `closed_form.disaggregation`). x_b then follows up to its scale; its sign follows from
    the neurons that must be active. With a bias the scales solve sum_b a_b delta_b = dL/db (x = dW_i / db_i at batch
    1). Without one, the known network decides: x = c u has dL/dx = W^T delta, and c delta is known, so c and the label
    solve

        c * dL/dx (c u, y) = B W^T v,    v u^T the record's part of dL/dW,

    which is a search over one number per label. If no c fits, the record may have been clipped, and the clipping factor
    is then solved for too. A batch that cannot be separated gets the mean auxiliary image as its answer, and a flag.
    """

    name: ClassVar[str] = "analytic"
    citation: ClassVar[str] = (
        "Phong et al., IEEE TIFS 2018 (one record); Dimitrov et al., SPEAR, NeurIPS 2024 (batches)"
    )

    #: larger batches are refused
    most_records: ClassVar[int] = MOST_RECORDS

    samples: int = Field(200_000, ge=1, description="how many row sets may be drawn to separate one batch")
    tolerance: float = Field(1e-3, gt=0, description="relative error of the re-computed gradient that counts as exact")

    def budget(self) -> dict[str, int]:
        """The maximum number of row sets that are drawn."""
        return {"samples": self.samples}

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Solve every problem on its own."""
        problems = task.problems(knowledge)
        _check_layer(knowledge.task, problems, self.most_records)
        images, labels, residuals, late, apart = [], [], [], 0, 0
        for index, problem in enumerate(problems):
            found = self._solve(knowledge, problem) if knowledge.time_left() > 0 else None
            residuals.append(found.residual if found is not None else 1.0)
            late += residuals[-1] > self.tolerance and knowledge.time_left() <= 0
            apart += found is not None
            images.append(_images(knowledge, problem, found))
            labels.append(found.labels if found is not None else labels_of(knowledge, problem))
            knowledge.progress(f"problem {index + 1} of {len(problems)}: residual {residuals[-1]:.2g}")
        inconsistent = sum(r > self.tolerance for r in residuals)
        flags = gradient_flags(problems)
        if late:
            flags.append(f"{STOPPED} in {late} of {len(problems)} problems")
        if inconsistent:
            flags.append(f"not consistent with the gradient: {inconsistent} of {len(problems)} problems")
        if apart < len(problems):
            flags.append(f"records not told apart, mean image returned: {len(problems) - apart} of {len(problems)}")
        return ReconstructionAnswer(tuple(images), tuple(flags), {"residual": max(residuals)}, tuple(labels))

    def separated(
        self, matrix: Tensor, records: int, random: torch.Generator, stop: Callable[[], bool]
    ) -> Iterator[Factors]:
        """Successively better guesses at the records in the first layer's gradient (n, D)."""
        return factorisations(matrix, records, self.samples, random, stop)

    def _solve(self, knowledge: Knowledge, problem: Inversion) -> _Found | None:
        """The consistent answer to one problem, else the most consistent one; None if records cannot be separated."""
        records = problem.gradient.records
        weight, bias = _first_layer(knowledge.task)
        matrix = problem.gradient.values[weight].double()
        # one record needs no gap in the spectrum: the first singular pair of a noisy gradient is still the best guess
        usable = bool(matrix.isfinite().all()) and bool(matrix.any()) and (records == 1 or has_rank(matrix, records))
        if not usable:
            return None
        layer = _Layer(knowledge.task, problem, weight, bias)
        best: tuple[float, Factors] | None = None
        random = knowledge.generator_for(problem, "rows")
        for factors in self.separated(matrix, records, random, lambda: knowledge.time_left() <= 0):
            oriented, agreement = layer.oriented(factors)
            if agreement >= AGREEMENT and (found := layer.solved(oriented)).residual <= self.tolerance:
                return found
            if best is None or agreement > best[0]:
                best = agreement, oriented
        return layer.solved(best[1]) if best is not None else None


class _Layer:
    """One problem's known network, and what its first layer says about candidate records."""

    def __init__(self, task: Task, problem: Inversion, weight: str, bias: str) -> None:
        self.task, self.records = task, problem.gradient.records
        self.model: Parameters = {n: v.double() if v.is_floating_point() else v for n, v in problem.model.items()}
        self.gradient: Parameters = {n: v.double() for n, v in problem.gradient.values.items()}
        self.weight, self.bias = self.model[weight], self.model.get(bias)
        self.bias_gradient = self.gradient.get(bias)
        self.mean = torch.tensor(task.public.mean, dtype=torch.float64).view(-1, 1, 1)
        self.std = torch.tensor(task.public.std, dtype=torch.float64).view(-1, 1, 1)
        corners = torch.maximum((self.mean / self.std).square(), ((1 - self.mean) / self.std).square())
        #: the norm of the largest possible image
        self.largest = math.sqrt(float(corners.sum()) * math.prod(task.public.shape[1:]))

    def oriented(self, factors: Factors) -> tuple[Factors, float]:
        """Factors with inputs of length one (without a bias) or of true size, and the share of neurons that agree."""
        return oriented(factors, self.weight, self.bias, self.bias_gradient)

    def solved(self, factors: Factors) -> _Found:
        """Scale each record, find its label and clipping factor, and compare the resulting gradient."""
        inputs, labels, shrunk = [], [], []
        for signal, direction in zip(factors.sparse.T, factors.rows, strict=True):
            target = self.records * (signal @ self.weight)  # c dL/dx, (D,)
            scaled = self._scaled(direction, target, clipped=False)
            if scaled.misfit > EXACT:
                other = self._scaled(direction, target, clipped=True)
                # an extra parameter always fits better: noise alone is no reason to assume clipping
                scaled = other if other.misfit < scaled.misfit / 30 else scaled
            inputs.append(scaled.scale * direction)
            labels.append(scaled.label)
            shrunk.append(scaled.factor)
        stacked = torch.stack(inputs)
        made, _ = self.task.gradient(self.model, self.as_images(stacked), torch.stack(labels), torch.stack(shrunk))
        error = sum(float((made[n] - self.gradient[n]).square().sum()) for n in made)
        size = sum(float(self.gradient[n].square().sum()) for n in made)
        return _Found(stacked, torch.stack(labels), math.sqrt(error / max(size, 1e-300)))

    def as_images(self, inputs: Tensor) -> Tensor:
        """Network inputs (N, D) as images (N, C, H, W) in image units."""
        return inputs.view(-1, *self.task.public.shape) * self.std + self.mean

    def _scaled(self, direction: Tensor, target: Tensor, *, clipped: bool) -> _Scaled:
        """The best fit of the record c * direction, c > 0; c is 1 if a bias determines it."""
        classes = self.task.public.classes
        labels = torch.arange(classes)
        if self.bias_gradient is not None:
            scales = torch.ones(classes, dtype=torch.float64)
        else:
            grid = self.largest * torch.logspace(-3, 0, COARSE, dtype=torch.float64)
            labels = labels.repeat_interleave(COARSE)
            errors = self._misfit(grid.repeat(classes), labels, direction, target, clipped=clipped).view(classes, -1)
            padded = torch.nn.functional.pad(errors, (1, 1), value=math.inf)
            labels, place = ((errors <= padded[:, :-2]) & (errors <= padded[:, 2:])).nonzero(as_tuple=True)
            scales = self._zoomed(grid[place], labels, direction, target, clipped=clipped)
        misfits = self._misfit(scales, labels, direction, target, clipped=clipped)
        best = misfits.argmin()
        factor = torch.ones((), dtype=torch.float64)
        if clipped:
            factor = self._factor(self._pulled(scales[best, None], labels[best, None], direction), target)[0]
        return _Scaled(scales[best], labels[best], factor, float(misfits[best]))

    def _zoomed(self, scales: Tensor, labels: Tensor, direction: Tensor, target: Tensor, *, clipped: bool) -> Tensor:
        """Each local minimum (N,) of the misfit over the scale, from the nearest point of the coarse grid."""
        width = math.log(1000) / (COARSE - 1)
        for _ in range(ZOOMS):
            offsets = torch.linspace(-width, width, FINE, dtype=torch.float64).exp()
            tried = scales[:, None] * offsets
            errors = self._misfit(tried.flatten(), labels.repeat_interleave(FINE), direction, target, clipped=clipped)
            scales = tried.gather(1, errors.view(-1, FINE).argmin(1, keepdim=True))[:, 0]
            width *= 2 / (FINE - 1)
        return scales

    def _pulled(self, scales: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        """c * dL/dx (N, D) at the inputs c * direction with these labels (N,)."""
        inputs = (scales[:, None] * direction).requires_grad_()
        losses = self.task.losses(self.task.logits(self.model, self.as_images(inputs)), labels)
        pulled: Tensor = torch.autograd.grad(losses.sum(), inputs)[0]
        return scales[:, None] * pulled

    @staticmethod
    def _factor(pulled: Tensor, target: Tensor) -> Tensor:
        """The clipping factor (N,) in (0, 1] that brings the gradients (N, D) closest to the target."""
        fitted = (pulled @ target) / pulled.square().sum(1).clamp(min=1e-300)
        return fitted.clamp(min=1e-12, max=1)

    def _misfit(self, scales: Tensor, labels: Tensor, direction: Tensor, target: Tensor, *, clipped: bool) -> Tensor:
        """||c dL/dx(c u, y) - target|| / ||target|| (N,), with the best clipping factor if `clipped`."""
        pulled = self._pulled(scales, labels, direction)
        if clipped:
            pulled = self._factor(pulled, target)[:, None] * pulled
        misfit: Tensor = (pulled - target).norm(dim=1) / target.norm().clamp(min=1e-300)
        return misfit


def _first_layer(task: Task) -> tuple[str, str]:
    """The names of the first weight and of its bias, which may not exist."""
    weight = next(n for n in task.parameter_names if n.endswith("weight"))
    return weight, weight.removesuffix("weight") + "bias"


def _check_layer(task: Task, problems: tuple[Inversion, ...], limit: int) -> None:
    """Raises `Unsupported` if the closed form does not apply."""
    weight, _ = _first_layer(task)
    shape = problems[0].model[weight].shape
    if len(shape) != 2 or shape[1] != math.prod(task.public.shape):
        raise Unsupported(f"the closed form needs a fully connected first layer; {task.public.model} has none")
    most = max(problem.gradient.records for problem in problems)
    few = min(*shape, limit)
    if most > few:
        raise Unsupported(f"a first layer of {shape[0]} x {shape[1]} can separate at most {few} records, not {most}")


def _images(knowledge: Knowledge, problem: Inversion, found: _Found | None) -> Tensor:
    """The answer (B, C, H, W) in image units; the mean auxiliary image where nothing better was found."""
    mean_image = knowledge.auxiliary.images.mean(0, keepdim=True).float()
    if found is None:
        return mean_image.repeat(problem.gradient.records, 1, 1, 1)
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (knowledge.public.mean, knowledge.public.std))
    images = found.inputs.float().view(-1, *knowledge.public.shape) * std + mean
    return torch.where(images.isfinite(), images, mean_image)
