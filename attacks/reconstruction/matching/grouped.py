"""Gradients of many problems on one model at once: shared weights, one gradient per problem.

Every weight becomes a stack (P, *shape) of equal copies that share memory, so that automatic differentiation gives one
gradient per problem. Convolutions run once over the images of all problems with the single weight. What differs
between problems (the gradients of the weights, and the pass back through them) runs as convolutions in P groups.
benchmarks/inversion.py measures the speed-up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, linear
from torch.overrides import TorchFunctionMode

from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

Pair = tuple[int, int]
_backward = torch.ops.aten.convolution_backward

#: stride, padding, dilation
How = tuple[Pair, Pair, Pair]


def can_group(network: nn.Module) -> bool:
    """Whether all parameters belong to plain convolutions and linear layers, and there are no buffers."""
    owners = [m for m in network.modules() if any(True for _ in m.parameters(recurse=False))]
    return not any(True for _ in network.buffers()) and all(
        type(m) is nn.Linear
        or (type(m) is nn.Conv2d and m.groups == 1 and m.padding_mode == "zeros" and not isinstance(m.padding, str))
        for m in owners
    )


def grouped_gradients(
    task: Task, model: Parameters, images: Tensor, labels: Tensor, own: Collection[str] = ()
) -> list[Tensor]:
    """Gradients (P, *shape) of each problem's mean loss, differentiable once in the images.

    Images (P, M, C, H, W) in [0, 1], targets (P, M, outputs). Needs `can_group`. The tensors named in `own` are stacks
    (P, *shape), one per problem; a convolution's weight cannot be among them.
    """
    records = images.shape[1]

    def loss(logits: Tensor) -> Tensor:
        return task.losses(logits, labels.flatten(0, 1)).sum() / records

    return grouped_slopes(task, model, images, loss, own)


def grouped_slopes(
    task: Task, model: Parameters, images: Tensor, loss: Callable[[Tensor], Tensor], own: Collection[str] = ()
) -> list[Tensor]:
    """The same for any loss, which maps outputs (P * M, outputs) to a number, the sum over the problems."""
    problems = len(images)
    stacks = {
        n: (model[n] if n in own else model[n].expand(problems, *model[n].shape)).detach().requires_grad_()
        for n in task.parameter_names
    }
    with _PerProblem():
        logits = task.logits(stacks, images.flatten(0, 1), train=True)
    return list(torch.autograd.grad(loss(logits), list(stacks.values()), create_graph=True))


class _PerProblem(TorchFunctionMode):
    """Inside this mode, convolutions and linear layers accept stacks of weights (P, *shape)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is conv2d and args[1].ndim == 5:
            return _convolve(*args, **(kwargs or {}))
        if func is linear and args[1].ndim == 3:
            return _multiply(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows (P * M, inputs) times a stack (P, outputs, inputs)."""
    out = x.view(len(weight), -1, x.shape[1]) @ weight.transpose(1, 2)
    return (out if bias is None else out + bias[:, None]).flatten(0, 1)


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """Images (P * M, C, H, W) through a stack (P, O, C, h, w)."""
    out: Tensor = _Convolution.apply(x, weight, (stride, padding, dilation))  # type: ignore[no-untyped-call]
    if bias is None:
        return out
    return (out.view(len(weight), -1, *out.shape[1:]) + bias[:, None, :, None, None]).flatten(0, 1)


class _Convolution(torch.autograd.Function):
    """A convolution with one weight that has one gradient of the weight per problem."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stack: Tensor, how: How) -> Tensor:
        """Images (P * M, C, H, W) and a stack (P, O, C, h, w) of equal weights."""
        ctx.save_for_backward(x, stack)
        ctx.how = how
        return _forward(x, stack[0], how)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        """Both gradients under create_graph; the second pass does not need that of the weights."""
        x, stack = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _to_input(x, stack[0], slope, ctx.how), None, None
        return *_Slopes.apply(x, slope, stack, ctx.how), None  # type: ignore[no-untyped-call]


class _Slopes(torch.autograd.Function):
    """The two gradients of a convolution: of its input, and of its weight (one per problem)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor, stack: Tensor, how: How) -> tuple[Tensor, Tensor]:
        """(gradient in x, gradients (P, O, C, h, w) in the weight)."""
        problems = len(stack)
        wide, wide_slope = _side_by_side(x, problems), _side_by_side(slope, problems)
        ctx.save_for_backward(wide, wide_slope, stack)
        ctx.how = how
        blank = wide.new_empty(1).expand(problems * stack.shape[1], *stack.shape[2:])
        weights = _to_weight(wide, blank, wide_slope, how, problems)
        return _to_input(x, stack[0], slope, how), weights.view(stack.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, along_x: Tensor, along_stack: Tensor) -> Any:
        """Both gradients are linear in the slope, and the weight's is linear in x: pass back through these."""
        wide, wide_slope, stack = ctx.saved_tensors
        problems, weights = len(stack), along_stack.flatten(0, 1)
        to_x = _to_input(wide, weights, wide_slope, ctx.how, problems)
        to_slope = _forward(wide, weights, ctx.how, problems)
        shared = _forward(along_x, stack[0], ctx.how)
        return _one_by_one(to_x, problems), _one_by_one(to_slope, problems) + shared, None, None


def _forward(x: Tensor, weight: Tensor, how: How, groups: int = 1) -> Tensor:
    """A convolution."""
    return conv2d(x, weight, None, *how, groups)


def _to_input(x: Tensor, weight: Tensor, slope: Tensor, how: How, groups: int = 1) -> Tensor:
    """The gradient of a convolution with respect to its input x, of which only the shape matters."""
    found: Tensor = _backward(slope, x, weight, None, *how, False, (0, 0), groups, (True, False, False))[0]
    return found


def _to_weight(x: Tensor, weight: Tensor, slope: Tensor, how: How, groups: int) -> Tensor:
    """The gradient of a convolution with respect to its weight, of which only the shape matters."""
    found: Tensor = _backward(slope, x, weight, None, *how, False, (0, 0), groups, (False, True, False))[1]
    return found


def _side_by_side(x: Tensor, problems: int) -> Tensor:
    """(P * M, C, H, W) to (M, P * C, H, W): the problems as groups of channels; no copy if M = 1."""
    shape = x.shape[1:]
    return x.reshape(problems, -1, *shape).transpose(0, 1).reshape(-1, problems * shape[0], *shape[1:])


def _one_by_one(x: Tensor, problems: int) -> Tensor:
    """(M, P * C, H, W) to (P * M, C, H, W)."""
    rest = x.shape[2:]
    return x.reshape(len(x), problems, -1, *rest).transpose(0, 1).reshape(len(x) * problems, -1, *rest)
