"""Gradients as one long vector, and back."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from leakboard.federation.payload import Parameters

Floats = NDArray[np.float64]


def flat(values: Parameters) -> Floats:
    """All values concatenated, ordered by name, in float64."""
    found: Floats = torch.cat([value.detach().double().flatten() for value in values.values()]).numpy()
    return found


def shaped(vector: Floats, like: Parameters) -> Parameters:
    """The inverse of `flat`: names, shapes and order from `like`, in float64."""
    drawn = torch.from_numpy(np.ascontiguousarray(vector))
    found: Parameters = {}
    start = 0
    for name, value in like.items():
        found[name] = drawn[start : start + value.numel()].view(value.shape)
        start += value.numel()
    return found


def added(gradient: Parameters, noise: Floats) -> Parameters:
    """Gradient plus a flat noise vector, in float64."""
    return {name: gradient[name].double() + drawn for name, drawn in shaped(noise, gradient).items()}


def added_in_place_of(gradient: Parameters, noise: Floats) -> Parameters:
    """The same in the gradient's own precision, so that the result can replace the gradient."""
    return {name: value.to(gradient[name].dtype) for name, value in added(gradient, noise).items()}
