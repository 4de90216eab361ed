"""Records from Phi in closed form, through a fully connected first layer.

Phi^(1) = 1/B sum_b k_b alpha_b p_b x_b^T with p = d alpha / dz at the first layer's outputs z. For one record every
row is a multiple of x. For B records, p_b is zero where the ReLU was off, which separates them
(`closed_form.disaggregation`). Without biases alpha is homogeneous in x, so the record's part v u^T of Phi^(1) (u of
length one) gives x = c u / sqrt(k) with

    c^2 = B <v, alpha(u) p> / ||alpha(u) p||^2,

and the record's part of Psi^(1) gives the label and k. With biases x is v u^T divided by the bias's gradient, and k
follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.attacks.reconstruction.closed_form.disaggregation import Factors, factorisations, has_rank, oriented
from leakboard.attacks.reconstruction.perturbation.psi import gradient_norms, settle
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.task import Task

#: share of a record's active neurons that its image must really activate
AGREEMENT = 0.99
#: a draw hits one of B records with probability 2^(1 - B): with more records no number of draws would suffice
MOST_RECORDS = 20


@dataclass(frozen=True)
class Found:
    """Images (B, C, H, W) of one problem in float64, their labels (B,), and Phi's relative error when recomputed."""

    images: Tensor
    labels: Tensor
    residual: float


def has_closed_form(task: Task, parts: CleanParts) -> bool:
    """Whether one fully connected layer reads the images and is wide enough to separate the records."""
    shape = parts.model[parts.inputs[0]].shape
    dense = len(parts.inputs) == 1 and len(shape) == 2 and shape[1] == math.prod(task.public.shape)
    return dense and parts.records <= min(*shape, MOST_RECORDS)


def solve(
    knowledge: Knowledge, parts: CleanParts, samples: int, tolerance: float, random: torch.Generator
) -> Found | None:
    """The records of one problem, or None if they cannot be separated or do not reproduce the observed Phi."""
    layer = _Layer(knowledge.task, parts)
    usable = bool(layer.gradient.isfinite().all()) and bool(layer.gradient.any())
    if not usable or not (parts.records == 1 or has_rank(layer.gradient, parts.records)):
        return None
    tried = factorisations(layer.gradient, parts.records, samples, random, lambda: knowledge.time_left() <= 0)
    for factors in tried:
        turned, agreement = oriented(factors, layer.weight, layer.bias, layer.bias_gradient)
        if agreement >= AGREEMENT and (found := layer.solved(turned)).residual <= tolerance:
            return found
    return None


class _Layer:
    """One problem's network, with alpha and the logits as its outputs."""

    def __init__(self, task: Task, parts: CleanParts) -> None:
        self.task, self.parts = task, parts
        self.name = parts.inputs[0]
        bias = self.name.removesuffix("weight") + "bias"
        self.weight, self.bias = parts.model[self.name], parts.model.get(bias)
        self.gradient, self.bias_gradient = parts.phi[self.name], parts.phi.get(bias)
        outputs = torch.cat([parts.head[None], parts.directions @ parts.weight])
        biases = torch.cat([parts.head.new_zeros(1), parts.directions @ parts.bias])
        #: alpha, then y . d for each direction
        self.model = parts.with_outputs(outputs, biases)
        self.mean = torch.tensor(task.public.mean, dtype=torch.float64).view(-1, 1, 1)
        self.std = torch.tensor(task.public.std, dtype=torch.float64).view(-1, 1, 1)

    def as_images(self, inputs: Tensor) -> Tensor:
        """Network inputs (N, pixels) as images (N, C, H, W) in image units."""
        return inputs.view(-1, *self.task.public.shape) * self.std + self.mean

    def solved(self, factors: Factors) -> Found:
        """Scale each record, find its label and clipping factor, and compare the resulting Phi."""
        # (directions, neurons, B): each record's part of Psi, as a multiple of its row of inputs
        mixed = self.parts.psi[self.name] @ torch.linalg.pinv(factors.rows)
        images, labels, shrunk = [], [], []
        for b, (signal, row) in enumerate(zip(factors.sparse.T, factors.rows, strict=True)):
            image, label, factor = self._record(signal, row, mixed[:, :, b])
            images.append(image)
            labels.append(label)
            shrunk.append(factor)
        stacked = torch.cat(images)
        return Found(stacked, torch.stack(labels), self._residual(stacked, torch.stack(shrunk)))

    def _record(self, signal: Tensor, row: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Image (1, C, H, W), label and clipping factor of the record with signal row^T in Phi, mixed row^T in Psi."""
        values, slopes = self._heads(row)
        length, one = slopes[0].square().sum().clamp(min=1e-300), torch.ones_like(values[0])
        fitted = self.parts.records * (signal @ slopes[0]) / (values[0].clamp(min=1e-300) * length)
        # with a bias the row is the image and k is unknown; without one its scale is, and values are sqrt(k) times the
        # true
        scale = one if self.bias is not None else fitted.clamp(min=1e-300).sqrt()
        factor = one if self.bias is None else fitted.clamp(min=1e-12, max=1)
        values = scale * values
        # mixed / records = k (alpha grad(y . d) + (e . d) grad alpha): subtract the first term
        seen = self.parts.records * mixed / (scale * factor)
        errors = (seen - values[0] * slopes[1:]) @ slopes[0] / length
        known = one if self.bias is not None or self.parts.clip is None else None
        settled = settle(
            values[1:] - errors, self.parts.directions, known, lambda y, k: self._expected(row, scale, y, k)
        )
        return self.as_images(scale / settled.factor.sqrt() * row), settled.label, factor * settled.factor

    def _heads(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """alpha and y . d (1 + D,) at a network input (pixels,), and their derivatives (1 + D, neurons) by z."""
        leaf = self.weight.detach().requires_grad_()
        outputs = self.task.logits({**self.model, self.name: leaf}, self.as_images(row[None]))[0]
        found = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in outputs]
        return outputs.detach(), torch.stack(found) @ row / row.square().sum().clamp(min=1e-300)

    def _expected(self, row: Tensor, scale: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
        """The factors by which the oracle would clip the images scale * row / sqrt(factor)."""
        assert self.parts.clip is not None
        images = self.as_images((scale / factors.sqrt())[:, None] * row)
        return (self.parts.clip / gradient_norms(self.task, self.parts, LabelledImages(images, labels))).clamp(max=1)

    def _residual(self, images: Tensor, factors: Tensor) -> float:
        """||Phi(images) - Phi|| / ||Phi||."""
        alone = self.parts.with_outputs(self.parts.head[None])
        made, _ = self.task.gradient(alone, images, torch.zeros(len(images), 1), factors)
        error = sum(float((made[n] - g).square().sum()) for n, g in self.parts.phi.items())
        size = sum(float(g.square().sum()) for g in self.parts.phi.values())
        return math.sqrt(error / max(size, 1e-300))
