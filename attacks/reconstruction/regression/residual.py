"""The residual of a single record, from the gradient of the last layer."""

from __future__ import annotations

import torch
from torch import Tensor

from leakboard.attacks.reconstruction.matching.labels import last_layer
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: points of the search for the size of the features, and how often it is repeated around the best one
POINTS, ZOOMS = 4001, 4


def residual_of(task: Task, model: Parameters, gradient: Parameters) -> tuple[Tensor, float]:
    """The residual r (classes,) = dL/dlogits of the one record behind a gradient, and the relative error of the fit.

    The last layer has dL/dW = r h^T = s v u^T, so h = t u and r = (s / t) v for one number t > 0. The known layer must
    have computed p(t W u + b) - onehot(y) = r, with p the softmax under cross-entropy and the identity under 1/2
    ||.||^2: one equation per class for t and the label y. With a bias dL/db = r gives t directly. An error far from 0
    says that this is not the gradient of a single record (noise, clipping, several records).
    """
    weight = last_layer(task)
    bias = weight.removesuffix("weight") + "bias"
    left, sizes, right = torch.linalg.svd(torch.nan_to_num(gradient[weight].double(), 0, 0, 0), full_matrices=False)
    sign = 1.0 if float(right[0].sum()) >= 0 else -1.0  # features are not negative after a ReLU
    v, s, u = sign * left[:, 0], sizes[0].clamp(min=1e-30), sign * right[0]
    logits = model[weight].double() @ u
    offset = model[bias].double() if bias in model else torch.zeros_like(logits)

    def errors(t: Tensor) -> Tensor:
        """||p - onehot(y) - r||^2 / ||r||^2 of every size (T,) for the best label."""
        made = t[:, None] * logits + offset
        made = made.softmax(1) if task.public.training.loss == "ce" else made
        rest = made - (s / t)[:, None] * v
        found: Tensor = (rest.square().sum(1) - 2 * rest.max(1).values + 1).clamp(min=0) * (t / s).square()
        return found

    if bias in model:
        size = float(v @ gradient[bias].double())
        t = (s / size if size > 0 else s)[None]
    else:
        t, span = (1 + s) / logits.norm().clamp(min=1e-12), 6.0
        for _ in range(ZOOMS):
            tried = t * torch.logspace(-span, span, POINTS, dtype=torch.float64)
            t, span = tried[errors(tried).argmin()], span * 4 / POINTS
        t = t[None]
    return (s / t[0]) * v, float(errors(t)[0].sqrt())
