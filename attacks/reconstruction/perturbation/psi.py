"""What Psi reveals about one record: its label, its features, and the factor by which it was clipped.

Take one record x with label y, alpha = q . h, e = W h + b - onehot(y), clipped by k. The view has k alpha h (and
k alpha if the last layer has a bias), the gradient of k/2 alpha^2 and, for each direction d, that of k alpha (e . d)
(`defenses.perturbation.clean`). A ReLU network is homogeneous in the weights that read the image together with all
hidden biases (Euler). Summing parameter times gradient over these gives

    k alpha (2 (W h) . d + b . d - onehot(y) . d)        from Psi, and k alpha^2 = q . (k alpha h)

so everything except the label's entry of d is known, up to sqrt(k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.datasets.base import LabelledImages
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.example_norms import loss_norms
from leakboard.federation.task import Task

#: number of auxiliary images that tell how a gradient's norm follows from that of its last layer
AUXILIARY = 64
#: clipping factors (N,) that records with labels (N,) would have if they had been clipped by factors (N,)
Predicted = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Features:
    """sqrt(k) times alpha (), h (features,) and the label's part onehot(y) . d (D,), and k if it is known."""

    alpha: Tensor
    hidden: Tensor
    label: Tensor
    factor: Tensor | None


@dataclass(frozen=True)
class Settled:
    """A record's label, its clipping factor k, and how much they contradict each other."""

    label: Tensor
    factor: Tensor
    misfit: float


def features_of(parts: CleanParts) -> Features:
    """The features that the message of one record reveals."""
    squared = (parts.head @ parts.features).clamp(min=1e-300)
    alpha = squared.sqrt()
    hidden = parts.features / alpha
    scaled = [n for n in parts.psi if n in parts.inputs or n.endswith("bias")]
    summed = torch.stack([(parts.psi[n] * parts.model[n]).flatten(1).sum(1) for n in scaled]).sum(0)
    factor, offset = None, torch.zeros_like(summed)
    if parts.offset is not None:
        factor = (parts.offset[0] / alpha).square()
        offset = factor.sqrt() * (parts.directions @ parts.bias)
    elif parts.clip is None:
        factor = torch.ones_like(alpha)
    label = 2 * parts.directions @ (parts.weight @ hidden) + offset - summed / alpha
    return Features(alpha, hidden, label, factor)


def settle(label: Tensor, directions: Tensor, factor: Tensor | None, predicted: Predicted) -> Settled:
    """The label y and the factor k with label (D,) = sqrt(k) onehot(y) . d.

    V1 has one direction per class and gives both directly. V2 has one equation, which gives one k per label; the right
    one is the k that clipping would really have chosen.
    """
    every = torch.arange(directions.shape[1])
    if factor is not None:
        misfits = (label[:, None] - factor.sqrt() * directions).norm(dim=0)
        return Settled(misfits.argmin(), factor, float(misfits.min()))
    roots = (label @ directions / directions.square().sum(0)).clamp(min=1e-6)
    misfits = (label[:, None] - roots * directions).norm(dim=0) / label.norm().clamp(min=1e-300)
    expected = predicted(every, roots.square().clamp(max=1))
    misfits = misfits + (roots.square().log() - expected.log()).abs()
    best = misfits.argmin()
    return Settled(best, roots[best].square().clamp(max=1), float(misfits[best]))


def by_auxiliary(task: Task, parts: CleanParts, features: Features, auxiliary: LabelledImages) -> Predicted:
    """min(1, B / ||g||) with ||g|| from the last layer's |e| |h|, in the same ratio as for auxiliary images."""

    def last_norms(hidden: Tensor, labels: Tensor) -> Tensor:
        onehot = torch.nn.functional.one_hot(labels, len(parts.weight))
        residual = hidden @ parts.weight.T + parts.bias - onehot
        found: Tensor = (residual.norm(dim=1) * hidden.norm(dim=1)).clamp(min=1e-300)
        return found

    def predicted(labels: Tensor, factors: Tensor) -> Tensor:
        data = _some(auxiliary)
        all_features = parts.with_outputs(torch.eye(len(parts.head), dtype=torch.float64))
        hidden = task.logits(all_features, data.images.double())
        ratio = (gradient_norms(task, parts, data) / last_norms(hidden, data.labels)).median()
        assert parts.clip is not None
        norms = ratio * last_norms(features.hidden / factors.sqrt()[:, None], labels)
        return (parts.clip / norms).clamp(max=1)

    return predicted


def gradient_norms(task: Task, parts: CleanParts, data: LabelledImages) -> Tensor:
    """Norms (N,) of each record's own gradient on the true model, in the precision in which it was clipped."""
    model = {n: v.to(task.dtype) if v.is_floating_point() else v for n, v in parts.model.items()}
    return loss_norms(task, model, data.images, data.labels).double().clamp(min=1e-12)


def _some(auxiliary: LabelledImages) -> LabelledImages:
    return auxiliary.select(torch.arange(min(AUXILIARY, len(auxiliary))))
