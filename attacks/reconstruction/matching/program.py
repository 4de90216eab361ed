"""A network as a list of steps that have hand-written passes; None for a network that does anything else."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

#: activations that act on each value alone
SMOOTH = (nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Softplus, nn.GELU, nn.SiLU)
#: layers without parameters that are linear
LINEAR = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)
_KNOWN = (nn.Conv2d, nn.Linear, nn.ReLU, *SMOOTH, *LINEAR)
_SUMS = (operator.add, operator.iadd, torch.add)


@dataclass(frozen=True)
class Step:
    """One operation: its module (None: the sum of two results), the module's name, and the results that it takes.

    Result 0 is the image, and result i + 1 is that of step i.
    """

    module: nn.Module | None
    name: str
    inputs: tuple[int, ...]


def can_group(network: nn.Module) -> bool:
    """Whether all parameters belong to plain convolutions and linear layers, and there are no buffers."""
    owners = [m for m in network.modules() if any(True for _ in m.parameters(recurse=False))]
    return not any(True for _ in network.buffers()) and all(
        type(m) is nn.Linear
        or (type(m) is nn.Conv2d and m.groups == 1 and m.padding_mode == "zeros" and not isinstance(m.padding, str))
        for m in owners
    )


@lru_cache(maxsize=8)
def program_of(network: nn.Module, shape: tuple[int, ...]) -> tuple[Step, ...] | None:
    """The steps of a network for images of a shape (C, H, W) in their order, of which the last gives the output."""
    if not can_group(network):
        return None
    try:
        traced = fx.symbolic_trace(network)
        nodes = list(traced.graph.nodes)
        ShapeProp(traced).propagate(torch.zeros(2, *shape))
    except Exception:  # a user's network may do anything
        return None
    modules, (image, *inner, output) = dict(network.named_modules()), nodes
    results, steps = {image: 0}, list[Step]()
    for node in inner:
        step = _step(node, modules, results)
        if step is None:
            return None
        steps.append(step)
        results[node] = len(steps)
    names = [step.name for step in steps if isinstance(step.module, nn.Conv2d | nn.Linear)]
    used = {f"{name}.{own}" for name in names for own, _ in modules[name].named_parameters()}
    complete = used == {name for name, _ in network.named_parameters()} and len(names) == len(set(names))
    return tuple(steps) if complete and steps and output.args == (inner[-1],) else None


def _step(node: fx.Node, modules: dict[str, nn.Module], results: dict[fx.Node, int]) -> Step | None:
    """A node as a step; None if it is none."""
    before = [a for a in node.args if isinstance(a, fx.Node)]
    inputs = tuple(results[a] for a in before)
    others = tuple(a for a in node.args if not isinstance(a, fx.Node))
    shapes = [tuple(a.meta["tensor_meta"].shape) for a in (*before, node)]
    if node.op == "call_module" and (len(inputs), others, node.kwargs) == (1, (), {}):
        module = modules[str(node.target)]
        return Step(module, str(node.target), inputs) if _is_known(module, shapes) else None
    if node.op == "call_function" and node.target in _SUMS and (len(inputs), others, node.kwargs) == (2, (), {}):
        return Step(None, "", inputs) if shapes[0] == shapes[1] else None
    if node.target in (torch.relu, nn.functional.relu, "relu") and (len(inputs), others, node.kwargs) == (1, (), {}):
        return Step(nn.ReLU(), "", inputs)
    if node.target in (torch.flatten, "flatten") and (len(inputs), others, node.kwargs) == (1, (1,), {}):
        return Step(nn.Flatten(), "", inputs)
    return None


def _is_known(module: nn.Module, shapes: list[tuple[int, ...]]) -> bool:
    """Whether a layer has passes, for an input and an output of these shapes."""
    if type(module) not in _KNOWN or getattr(module, "inplace", False):
        return False
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return not isinstance(module, nn.Linear) or len(shapes[0]) == 2
