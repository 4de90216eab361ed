"""Label recovery from the gradient of the last linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from federation.payload import Parameters
from federation.task import Task


def last_layer(task: Task) -> str:
    """The name of the last weight matrix (classes, features)."""
    return [n for n in task.parameter_names if n.endswith("weight")][-1]


def recover_labels(task: Task, model: Parameters, gradient: Parameters, records: int) -> Tensor:
    """Labels (records,), sorted, of the batch behind a mean gradient taken on `model`.

    The last layer's gradient is mean_b e_b h_b^T with features h >= 0 (after a ReLU) and the residual
    e = softmax - onehot under cross-entropy, e = logits - onehot under 1/2 ||.||^2.

    One record under cross-entropy: e is negative at the label alone, so the label is the class with the
    least row sum (Zhao et al. 2020), exactly. One record under 1/2 ||.||^2: see `_by_consistency`.
    More records: each pushes the row of its class down by about 1/records of the mean feature; take
    the least row sum, give that row back one record's share, repeat (after Geng et al. 2021).
    An estimate, good on untrained models.
    """
    weight = last_layer(task)
    if records == 1 and task.public.training.loss == "mse":
        bias = weight.removesuffix("weight") + "bias"
        return _by_consistency(model[weight], model.get(bias), gradient[weight])
    sums = torch.nan_to_num(gradient[weight].double(), 0, 0, 0).sum(dim=1)
    share = sums.clamp(max=0).sum() / records
    found = []
    for _ in range(records):
        label = int(sums.argmin())
        found.append(label)
        sums[label] -= share
    return torch.tensor(sorted(found))


def _by_consistency(weight: Tensor, bias: Tensor | None, gradient: Tensor) -> Tensor:
    """The label (1,) of one record under 1/2 ||.||^2, by what the known layer must have computed.

    The gradient e h^T = s v u^T gives h = t u and e = (s / t) v up to one number t > 0. Since
    e = W h + b - onehot(y), the right label and t solve t W u + b - (s / t) v = onehot(y): classes
    equations for one unknown. The label with the least squared error over t wins. Exact without noise.
    """
    # a diverged model sends no numbers; any label will do then, but the attack must go on
    left, sizes, right = torch.linalg.svd(torch.nan_to_num(gradient.double(), 0, 0, 0), full_matrices=False)
    v, s, u = left[:, 0], sizes[0], right[0]
    if u.sum() < 0:
        u, v = -u, -v
    logits = weight.double() @ u
    offset = bias.double() if bias is not None else torch.zeros_like(logits)
    # a log-fine grid for t around the size at which both sides are of order one
    centre = (1 + s) / logits.norm().clamp(min=1e-12)
    t = centre * torch.logspace(-6, 6, 20_001, dtype=torch.float64)
    residue = t[:, None] * logits + offset - (s / t)[:, None] * v
    errors = residue.square().sum(1, keepdim=True) - 2 * residue + 1  # ||residue - onehot(y)||^2 for every y
    return torch.argmin(errors.min(dim=0).values).view(1)
