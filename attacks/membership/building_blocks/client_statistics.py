"""How much each client's update looks as if it had been trained on a record, and the other clients as the null."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.attacks.membership.building_blocks.batch import Mixture, flat, own_loss, transformed_parts
from leakboard.attacks.membership.building_blocks.signals import losses
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Reading

Measure = Literal["cosine", "difference", "norm", "loss"]
#: with fewer other clients there is no null distribution
FEWEST_OTHERS = 2
#: what is this many deviations above the other clients' mean is no null value; it never happens with 10 or fewer
OUTLIER = 3.0


def statistics_of(
    knowledge: Knowledge, reading: Reading, records: LabelledImages, measure: Measure
) -> dict[str, Tensor]:
    """M_k (N,) of every client k whose own gradient a reading of a training round holds; larger means a member.

    - cosine: cos(g_k, T(grad loss(w; x))), with T what the defense declares that it does to a record's gradient
    - difference: ||g_k||^2 - ||g_k - T(grad loss(w; x)) / B||^2, with B the records behind g_k
    - norm: -||T(grad loss(w; x))||^2, the same for every client; it sees no update
    - loss: minus the loss of x after the client's own step, w - eta g_k
    """
    model = reading.model
    clients = {name: g for name, g in reading.gradients.items() if name != AGGREGATE and g.clients == 1}
    if model is None or not clients:
        return {}
    if measure == "loss":
        rate, found = knowledge.public.training.learning_rate, {}
        for name, gradient in clients.items():
            stepped = {**model, **{n: model[n] - rate * g.to(model[n]) for n, g in gradient.values.items()}}
            found[name] = -losses(knowledge.task, stepped, records).double()
        return found
    first = next(iter(clients.values()))
    transform = knowledge.defense.mimic_records(first, knowledge.public)
    mixture = Mixture(first, model, own_loss(knowledge.task), model, transform)
    order = list(first.values)
    seen = torch.stack([flat({n: g.values[n][None] for n in order})[0] for g in clients.values()])  # (K, d)
    rows = []
    for part in transformed_parts(knowledge.task, records, mixture):
        own = flat({n: part[n] for n in order})
        dots, sizes = own @ seen.T, own.square().sum(1)[:, None]  # (n, K), (n, 1)
        if measure == "cosine":
            rows.append(dots / (own.norm(dim=1)[:, None] * seen.norm(dim=1)).clamp(min=1e-300))
        elif measure == "norm":
            rows.append(-sizes.expand_as(dots))
        else:
            rows.append(2 * dots / first.records - sizes / first.records**2)
    every = torch.nan_to_num(torch.cat(rows), 0, 0, 0)
    return {name: every[:, place] for place, name in enumerate(clients)}


def against_others(own: Tensor, others: Tensor) -> Tensor:
    """Pr[T <= t] (N,) of a statistic (N,) beside the same of n other clients (n, N), record by record.

    t = (M - mean) / (s sqrt(1 + 1 / n)) has Student's distribution with n - 1 degrees of freedom if all are independent
    and normal with the same mean and variance, so the result is uniform for a record that no client has. A normal
    distribution with the estimated variance, as published, is not: with few clients it is far too sure.
    """
    others = others.double()
    centre, spread = others.mean(0), others.std(0, unbiased=True)
    kept = (others <= centre + OUTLIER * spread).double()
    count = kept.sum(0).clamp(min=FEWEST_OTHERS)
    mean = (kept * others).sum(0) / count
    variance = (kept * (others - mean).square()).sum(0) / (count - 1)
    scale = (variance * (1 + 1 / count)).sqrt().clamp(min=1e-300)
    t = ((own.double() - mean) / scale).clamp(-1e12, 1e12)
    found = cast("np.ndarray[Any, np.dtype[np.float64]]", stats.t.cdf(t.numpy(), (count - 1).numpy()))
    return torch.from_numpy(np.asarray(found))
