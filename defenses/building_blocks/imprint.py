"""Weights by which a server reads records out of a sum, and what a client that looks at them would notice."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: the bins cover the mean pixel of normalised images as if it were N(0, SPREAD^2)
SPREAD = 0.5
#: the threshold of the first bin, below all images
LOWEST = -10.0
#: columns of the second layer that differ less than this, relative to their size, are taken for equal
EQUAL = 1e-4


def can_be_imprinted(task: Task) -> bool:
    """Whether the first layer is fully connected with a bias, and the second one fully connected."""
    return _layers(task) is not None


def imprinted(task: Task, model: Parameters) -> Parameters | None:
    """The model with an imprint in its first layer; None if that layer is not fully connected with a bias.

    Every row of the first layer is the same query h, the mean pixel, and its biases are -c_0 > -c_1 > ...: row i is
    active where <h, x> > c_i. The weights out of all rows are the same, so one record has the same gradient in every
    active row, and the difference of two neighbouring rows holds only the records between their thresholds
    (Fowl et al., Robbing the Fed, ICLR 2022).
    """
    names = _layers(task)
    if names is None:
        return None
    first, second = names
    rows, inputs = model[first].shape
    shares = torch.arange(1, rows, dtype=torch.float64) / rows
    thresholds = torch.cat([torch.tensor([LOWEST]).double(), SPREAD * math.sqrt(2) * torch.erfinv(2 * shares - 1)])
    found = {name: value.clone() for name, value in model.items()}
    found[first] = torch.full_like(model[first], 1 / inputs)
    found[first.removesuffix("weight") + "bias"] = -thresholds.to(model[first])
    found[second] = (model[second][:, :1] / math.sqrt(rows)).expand_as(model[second]).clone()
    return found


def signs_of_imprint(task: Task, model: Parameters) -> list[str]:
    """What a client that looks at the weights would notice; nothing in weights that were drawn or trained."""
    names = _layers(task)
    if names is None:
        return []
    first, second = names
    weight, bias = model[first].double(), model[first.removesuffix("weight") + "bias"].double()
    found = []
    sizes = torch.linalg.svdvals(weight)
    if len(sizes) > 1 and float(sizes[1]) < EQUAL * float(sizes[0]):
        found.append("the first layer has rank 1")
    if len(bias) > 2 and bool((bias.diff() < 0).all() or (bias.diff() > 0).all()):
        found.append("the biases of the first layer are in order")
    columns = model[second].double()
    if float((columns - columns[:, :1]).norm()) < EQUAL * float(columns.norm()):
        found.append("all weights out of the first layer are equal")
    return found


def _layers(task: Task) -> tuple[str, str] | None:
    """The names of the first two weights, if the first layer is fully connected, with a bias, on the image itself."""
    linear = {
        f"{name}.weight": layer for name, layer in task.skeleton().named_modules() if isinstance(layer, nn.Linear)
    }
    weights = [name for name in task.parameter_names if name.endswith("weight")]
    if len(weights) < 2 or not {weights[0], weights[1]} <= linear.keys() or linear[weights[0]].bias is None:
        return None
    return (weights[0], weights[1]) if linear[weights[0]].in_features == math.prod(task.public.shape) else None


def imprinted_records(weight: Tensor, bias: Tensor, records: int) -> Tensor:
    """At most `records` inputs (N, n) from an imprinted layer's gradients (k, n) and (k,): the fullest bins first.

    Bin i holds the records between the thresholds of rows i and i + 1, the last one those above all thresholds:
    x = (dW_i - dW_{i+1}) / (db_i - db_{i+1}). Two records in a bin give a mean of them, weighted by their gradients.
    """
    after = torch.cat([weight[1:], torch.zeros_like(weight[:1])])
    held = bias - torch.cat([bias[1:], bias.new_zeros(1)])
    # what rounding leaves is far below the smallest record
    full = held.abs() > 1e-5 * held.abs().max().clamp(min=1e-300)
    order = held.abs().argsort(descending=True)
    chosen = order[full[order]][:records]
    return (weight - after)[chosen] / held[chosen, None]
