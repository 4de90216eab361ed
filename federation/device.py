"""Where a federation computes: gradients and predictions on the run's device, everything else on the CPU.

Messages, states, noise, cryptography and transcripts stay on the CPU. A function with `@on_compute_device` gets its
tensors on the device, and its results come back to the CPU. On the CPU, which is the default, it is called as it is:
the bits are the same as without this module. No GPU has been used yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor

CPU = "cpu"
_device: ContextVar[str] = ContextVar("compute device", default=CPU)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@contextmanager
def computing_on(device: str) -> Iterator[None]:
    """In this block, functions with `@on_compute_device` compute on this device."""
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)


def compute_device() -> str:
    """The device of the innermost `computing_on` block; the CPU outside of all."""
    return _device.get()


def on_device(value: T, device: str) -> T:
    """A tensor, or the tensors in dicts, lists and tuples, on a device; anything else unchanged.

    >>> {name: str(value.device) for name, value in on_device({"w": torch.zeros(2)}, "meta").items()}
    {'w': 'meta'}
    """
    return cast(T, _moved(value, device))


def _moved(value: object, device: str) -> object:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    return value


def run_there(function: Callable[..., R], device: str, *args: object, **kwargs: object) -> R:
    """Call a function with its tensors on a device; tensors that it makes are made there, too."""
    with torch.device(device):
        return function(*on_device(args, device), **on_device(kwargs, device))


def on_compute_device(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of tensors compute on `compute_device()`; its results are on the CPU."""

    @wraps(function)
    def moved(*args: P.args, **kwargs: P.kwargs) -> R:
        device = compute_device()
        if device == CPU:
            return function(*args, **kwargs)
        return on_device(run_there(function, device, *args, **kwargs), CPU)

    return moved
