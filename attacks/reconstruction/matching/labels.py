"""Label recovery from the gradient of the last linear layer.

That gradient is G = mean_b e_b h_b^T (classes, features), with features h >= 0 (after a ReLU) and the residual
e = softmax - onehot under cross-entropy, e = logits - onehot under 1/2 ||.||^2 (docs/decisions.md, 9.9).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.closed_form.disaggregation import Factors, factorisations, has_rank
from leakboard.datasets.base import LabelledImages
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: the number of row sets that are drawn to separate a batch
SAMPLES = 40_000
#: squared error of the one-hot vector below which a label counts as consistent
CONSISTENT = 1e-3
#: number of auxiliary images used, and of values (directions of features times classes) kept per image
AUXILIARY, NUMBERS = 1000, 200


def last_layer(task: Task) -> str:
    """The name of the last weight matrix (classes, features)."""
    return [n for n in task.parameter_names if n.endswith("weight")][-1]


def labels_of(knowledge: Knowledge, problem: Inversion, *, auxiliary: bool = True) -> Tensor:
    """The labels (M,) of a problem: granted by the cell, otherwise recovered, optionally with auxiliary images."""
    if problem.labels is not None:
        return problem.labels
    images, gradient = knowledge.auxiliary if auxiliary else None, problem.gradient
    return recover_labels(knowledge.task, problem.model, gradient.values, gradient.records, images)


def recover_labels(
    task: Task, model: Parameters, gradient: Parameters, records: int, auxiliary: LabelledImages | None = None
) -> Tensor:
    """Labels (records,), sorted, of the batch whose mean gradient was taken on `model`.

    The first of these methods that applies is used:

    1. One record: exact. Under cross-entropy e is negative only at the label, so the label has the smallest row sum
       (Zhao et al. 2020, iDLG). Under 1/2 ||.||^2 see `_by_consistency`.
    2. At most as many records as classes, and no noise: G is separated into its records, whose features a ReLU made
       sparse (`closed_form.disaggregation`), and each is solved as in 1. Exact, or found to be inconsistent and not
       used.
    3. With auxiliary images: the counts with the nearest expected gradient; see `_by_regression`. An estimate.
    4. Each record lowers the row of its class by about 1/records of the mean feature: take the smallest row sum, give
       that row back the share of one record, repeat (after Geng et al. 2021). An estimate, for untrained models.
    """
    weight = last_layer(task)
    # the gradient of a diverged model is not finite; any label will do then, but the attack must continue
    layer = _LastLayer(
        task.public.training.loss == "mse",
        model[weight].double(),
        model.get(weight.removesuffix("weight") + "bias"),
        torch.nan_to_num(gradient[weight].double(), 0, 0, 0),
    )
    if records == 1:
        return layer.label_of(layer.gradient)[0].view(1)
    taken_apart = _taken_apart(layer, records)
    if taken_apart is not None:
        return taken_apart.sort().values
    if auxiliary is not None and len(auxiliary) > task.public.classes:
        return _by_regression(task, model, layer.gradient, records, auxiliary)
    return _by_row_sums(layer.gradient, records)


@dataclass(frozen=True)
class _LastLayer:
    """Weight (classes, features), bias (classes,) or None, and gradient (classes, features) in float64."""

    mse: bool
    weight: Tensor
    bias: Tensor | None
    gradient: Tensor

    def label_of(self, part: Tensor) -> tuple[Tensor, bool]:
        """The label of the single record whose e h^T (classes, features) is given, and whether it is certain."""
        if self.mse:
            return self._by_consistency(part)
        least, second = part.sum(1).topk(2, largest=False).values
        return part.sum(1).argmin(), bool(least < 0) and bool(second > 0.05 * least)

    def _by_consistency(self, part: Tensor) -> tuple[Tensor, bool]:
        """The label under 1/2 ||.||^2, from what the known layer must have computed.

        e h^T = s v u^T gives h = t u and e = (s / t) v up to one number t > 0. Because e = W h + b - onehot(y), the
        right label and t solve t W u + b - (s / t) v = onehot(y): one equation per class for one unknown. The label
        with the smallest squared error over t is taken. Exact without noise.
        """
        left, sizes, right = torch.linalg.svd(part, full_matrices=False)
        v, s, u = left[:, 0], sizes[0], right[0]
        if u.sum() < 0:
            u, v = -u, -v
        logits = self.weight @ u
        offset = self.bias.double() if self.bias is not None else torch.zeros_like(logits)
        # a logarithmic grid for t around the size at which both sides are of order one
        centre = (1 + s) / logits.norm().clamp(min=1e-12)
        t = centre * torch.logspace(-6, 6, 20_001, dtype=torch.float64)
        residue = t[:, None] * logits + offset - (s / t)[:, None] * v
        errors = residue.square().sum(1, keepdim=True) - 2 * residue + 1  # ||residue - onehot(y)||^2 for every y
        best, runner_up = errors.min(dim=0).values.topk(2, largest=False).values
        return torch.argmin(errors.min(dim=0).values), bool(best < CONSISTENT) and bool(best < 0.1 * runner_up)


def _taken_apart(layer: _LastLayer, records: int) -> Tensor | None:
    """All labels from the records in the gradient, or None if any of them is uncertain."""
    turned = layer.gradient.T
    if not has_rank(turned, records):
        return None
    for factors in factorisations(turned, records, SAMPLES, torch.Generator().manual_seed(0)):
        labels = _labels_of(layer, factors, records)
        if labels is not None:
            return labels
    return None


def _labels_of(layer: _LastLayer, factors: Factors, records: int) -> Tensor | None:
    """The labels (records,) if features are non-negative and every record is consistent; otherwise None."""
    labels = []
    for features, residual in zip(factors.sparse.T, factors.rows, strict=True):
        sign = torch.sign(features.sum())
        if float((features * sign).min()) < -1e-3 * float(features.abs().max()):
            return None
        label, sure = layer.label_of(records * torch.outer(residual * sign, features * sign))
        if not sure:
            return None
        labels.append(label)
    return torch.stack(labels)


def _by_regression(task: Task, model: Parameters, gradient: Tensor, records: int, auxiliary: LabelledImages) -> Tensor:
    """The label counts n_c whose expected gradient sum_c n_c / B E[e h^T | c] is nearest to the observed one.

    The expectations come from auxiliary images of class c on the known model, and so does the covariance Sigma of e h^T
    within a class. The distance is the Mahalanobis distance (generalised least squares), after a projection of h onto
    the main directions of the auxiliary features. Integer counts are found by exchange from an even start. With only
    the class means this is the method of Wainakh et al. 2022 (LLG) by impact and offset.
    """
    means, spread, directions = _expected(task, model, auxiliary)
    observed = (gradient @ directions).flatten()
    # whitened: ||A p - b||^2 with p = counts / records
    factor = torch.linalg.cholesky(spread)
    a = torch.linalg.solve_triangular(factor, means.T, upper=False)
    b = torch.linalg.solve_triangular(factor, observed[:, None], upper=False)[:, 0]
    quadratic, linear = a.T @ a, a.T @ b
    even = torch.bincount(torch.arange(records) % len(quadratic), minlength=len(quadratic)).double()
    counts = exchanged(quadratic / records**2, linear / records, even)
    return torch.arange(len(counts)).repeat_interleave(counts.long())


def exchanged(quadratic: Tensor, linear: Tensor, counts: Tensor) -> Tensor:
    """Integer counts n (classes,) of records that minimise n^T Q n - 2 l . n, by moving one record at a time."""
    counts, classes = counts.clone(), len(counts)
    negligible = 1e-9 * float(quadratic.diagonal().max())  # rounding must not move records in circles
    # moving one record from class i to class j: the curvature of the cost, and (below) its change
    curve = quadratic.diagonal()[:, None] + quadratic.diagonal() - 2 * quadratic
    while True:
        slope = quadratic @ counts - linear  # half the derivative
        change = 2 * (slope[None, :] - slope[:, None]) + curve
        change[counts == 0] = torch.inf
        best = int(change.argmin())
        if not float(change.flatten()[best]) < -negligible:
            return counts
        counts[best // classes] -= 1
        counts[best % classes] += 1


def _expected(task: Task, model: Parameters, auxiliary: LabelledImages) -> tuple[Tensor, Tensor, Tensor]:
    """Of the projected e h^T: class means (classes, d), covariance within a class (d, d), and the projection of h."""
    data = auxiliary.select(torch.arange(min(AUXILIARY, len(auxiliary))))
    features, logits = _features(task, model, data.images)
    classes = task.public.classes
    directions = torch.linalg.svd(features, full_matrices=False).Vh[: max(1, NUMBERS // classes)].T
    onehot = torch.nn.functional.one_hot(data.labels, classes).double()
    guess = logits if task.public.training.loss == "mse" else logits.softmax(1)
    short = features @ directions
    parts = ((guess - onehot)[:, :, None] * short[:, None, :]).flatten(1)
    means = []
    for label in range(classes):
        mine = data.labels == label
        if bool(mine.any()):
            means.append(parts[mine].mean(0))
        else:  # the attacker has no image of this class: use the features of all images with this label
            other = guess - torch.eye(classes, dtype=torch.float64)[label]
            means.append((other[:, :, None] * short[:, None, :]).flatten(1).mean(0))
    stacked = torch.stack(means)
    centred = parts - stacked[data.labels]
    spread = centred.T @ centred / len(centred)
    # there are too few images for so many covariances: shrink towards the diagonal
    spread = 0.9 * spread + 0.1 * spread.diagonal().mean() * torch.eye(len(spread), dtype=torch.float64)
    return stacked, spread + 1e-12 * torch.eye(len(spread), dtype=torch.float64), directions


@torch.no_grad()
def _features(task: Task, model: Parameters, images: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs of the last layer (N, features) and the logits (N, classes), as in training, in float64."""
    caught: list[Tensor] = []
    layer = task.skeleton().get_submodule(last_layer(task).removesuffix(".weight"))
    hook = layer.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    try:
        copied = {name: value.clone() for name, value in model.items()}  # batch norm writes into its buffers
        logits = task.logits(copied, images.to(copied[last_layer(task)].dtype), train=True)
    finally:
        hook.remove()
    return torch.nan_to_num(caught[0].double(), 0, 0, 0), torch.nan_to_num(logits.double(), 0, 0, 0)


def _by_row_sums(gradient: Tensor, records: int) -> Tensor:
    """Labels (records,) from the row sums only."""
    sums = gradient.sum(dim=1)
    share = sums.clamp(max=0).sum() / records
    found = []
    for _ in range(records):
        label = int(sums.argmin())
        found.append(label)
        sums[label] -= share
    return torch.tensor(sorted(found))
