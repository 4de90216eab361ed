"""Values that are not finite, or far too large, are replaced here: before clipping and noise, never after.

A server chooses the weights, so it can make one record's gradient overflow and another's not. NaN plus noise is NaN.
Whatever replaces it after the noise is a value that no noise covers, and it distinguishes the two records with
certainty. So a record whose part is not finite counts as zero in the mean, independent of the rest of the batch, and
noise is added afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters

#: the largest L2 norm of anything that a client sends: sums of such values with noise still fit into float32
LIMIT = 2.0**100
#: what rounding may add to the norm of a clipped mean (bfloat16 at worst)
MARGIN = 1.01
#: the mean parts (tensors by name) of the records of a batch in a slice, given their weights (n,)
Parts = Callable[[slice, Tensor | None], tuple[Parameters, ...]]


def norm(values: Parameters) -> float:
    """L2 norm of a whole gradient, in float64.

    >>> norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    5.0
    """
    return math.sqrt(sum(float(value.double().square().sum()) for value in values.values()))


def or_zero(gradient: Parameters) -> Parameters:
    """The gradient, or zero if any of its values is not finite (or its norm exceeds `LIMIT`).

    For defenses that add noise to a client's whole gradient. Call it before clipping: the sensitivity is then the clip
    bound.

    >>> or_zero({"w": torch.tensor([1.0, torch.nan])})["w"]
    tensor([0., 0.])
    """
    if norm(gradient) <= LIMIT:  # false for NaN too
        return gradient
    return {name: torch.zeros_like(value) for name, value in gradient.items()}


def bounded_mean(
    me: Party,
    parts: Parts,
    weights: Tensor | None,
    bounds: Sequence[float] = (LIMIT,),
    whole: tuple[Parameters, ...] | None = None,
) -> tuple[Parameters, ...]:
    """Client: the mean over its batch of c_b part_b, finite for any weights of the model.

    `whole` is that mean as computed in one pass, if it is already there.

    One pass over the batch suffices if the mean of each part is finite and within its bound (as the mean of clipped
    parts is). Otherwise it goes record by record: a record with a value that is not finite counts as zero in all parts,
    and one beyond a bound is scaled down to the bound by its own norm. So each record moves part i by at most bounds_i
    / batch, independent of the other records.
    """
    assert me.batch is not None
    whole = parts(slice(None), weights) if whole is None else whole
    if all(norm(part) <= MARGIN * bound for part, bound in zip(whole, bounds, strict=True)):
        return whole
    found = tuple({name: torch.zeros_like(value) for name, value in part.items()} for part in whole)
    count, left_out = len(me.batch), 0
    for record in range(count):
        one = slice(record, record + 1)
        own = parts(one, None if weights is None else weights[one])
        sizes = [norm(part) for part in own]
        if not all(size <= LIMIT for size in sizes):
            left_out += 1
            continue
        scale = min([1.0, *(b / s for b, s in zip(bounds, sizes, strict=True) if s > b)]) / count
        found = tuple(
            {n: v + scale * part[n] for n, v in total.items()} for total, part in zip(found, own, strict=True)
        )
    if me.oracle is not None:
        me.oracle.note("not_finite_share", left_out / count)
    return found
