"""Label recovery from the gradient of the last linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from federation.payload import Parameters
from federation.task import Task


def last_layer(task: Task) -> str:
    """The name of the last weight matrix (classes, features)."""
    return [n for n in task.parameter_names if n.endswith("weight")][-1]


def recover_labels(task: Task, gradient: Parameters, records: int) -> Tensor:
    """Labels (records,), sorted, of the batch behind a mean gradient.

    The last layer's gradient is mean_b (residual_b h_b^T) with h >= 0 after a ReLU. Under
    cross-entropy the residual is softmax - onehot, under 1/2 ||.||^2 it is logits - onehot: in both,
    the row of a class that is present is pushed down by 1/records of the mean feature for each of its
    records. So: row sums s_c; take the most negative class, give its row back one record's share
    m = sum_{s_c < 0} s_c / records, and repeat (Zhao et al. 2020 for one record; the greedy
    count follows Geng et al. 2021). Exact for one record while the other classes' logits stay above label's
    minus one; an estimate beyond.
    """
    sums = gradient[last_layer(task)].double().sum(dim=1)
    share = sums.clamp(max=0).sum() / records
    found = []
    for _ in range(records):
        label = int(sums.argmin())
        found.append(label)
        sums[label] -= share
    return torch.tensor(sorted(found))
