"""Gradients of many problems at once, and their derivative in the images, by passes that are written out.

A matching cost c(g) of the gradient g(x) = dL/dw has the image gradient

    dc/dx  =  d/dx <g(x), v>  =  d/dt dL/dx (x, w + t v)  at t = 0,    v = dc/dg

which is the R-operator of Pearlmutter (1994): a forward pass of tangents along v, and one more pass back. Automatic
differentiation through g(x) needs the same convolutions, but adds bookkeeping and changes of layout. Every problem has
its own g and v. Convolutions with the model's weight run over the images of all problems; those that give g or use v
run in one group per problem. benchmarks/inversion.py measures the speed-up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakboard.attacks.reconstruction.matching.layers import Layer, maker_of
from leakboard.attacks.reconstruction.matching.program import program_of
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: outputs (P * M, outputs) to the sum of the problems' losses
Loss = Callable[[Tensor], Tensor]


class Network:
    """The network of P problems with M images each; all its passes are made from it.

    The tensors of the model named in `own` are stacks (P, *shape), one per problem; a convolution's weight can be among
    them only if P = 1. With a `bend`, the derivative of gradients in the images takes into account that a ReLU can
    switch (`layers._BentRelu`); the gradients stay exact.
    """

    def __init__(
        self,
        task: Task,
        model: Parameters,
        problems: int,
        records: int,
        own: Collection[str] = (),
        bend: float = 0.0,
    ) -> None:
        program = program_of(task.skeleton(), task.public.shape)
        if program is None:
            raise TypeError("the network has layers that cannot be grouped")
        self.task, self.shape, self.program = task, (problems, records), program
        self.makers = [maker_of(step, task, model, self.shape, own, bend) for step in program]
        self.std = torch.tensor(task.public.std).view(-1, 1, 1)

    def slopes(self, images: Tensor, loss: Loss) -> list[Tensor]:
        """Gradients (P, *shape) of a loss for images (P, M, C, H, W) in [0, 1], differentiable once in the images.

        The loss maps outputs (P * M, outputs) to a number, the sum over the problems.
        """
        return list(_Gradients.apply(images, _Passes(self), loss))  # type: ignore[no-untyped-call]

    def gradients(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        """The same for each problem's mean loss against targets (P, M, outputs)."""
        return self.slopes(images, lambda out: self.task.losses(out, labels.flatten(0, 1)).sum() / self.shape[1])


def grouped_gradients(
    task: Task, model: Parameters, images: Tensor, labels: Tensor, own: Collection[str] = ()
) -> list[Tensor]:
    """Gradients (P, *shape) of each problem's mean loss for images (P, M, C, H, W) and targets (P, M, outputs)."""
    return Network(task, model, images.shape[0], images.shape[1], own).gradients(images, labels)


class _Gradients(torch.autograd.Function):
    """Gradients of the parameters as a function of the images."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, passes: _Passes, loss: Loss) -> tuple[Tensor, ...]:
        """Images (P, M, C, H, W) to gradients (P, *shape)."""
        ctx.passes = passes
        return passes.gradients(images, loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *along: Tensor) -> Any:
        """The derivative of sum <gradient, along> in the images."""
        return ctx.passes.slopes(along), None, None


class _Passes:
    """The four passes of one evaluation: forward, back, tangents forward, tangents back."""

    def __init__(self, network: Network) -> None:
        self.network, self.task, self.program = network, network.task, network.program
        self.layers = [make() for make in network.makers]
        self.outputs = self.errors = torch.empty(0)

    def gradients(self, images: Tensor, loss: Loss) -> tuple[Tensor, ...]:
        """Gradients (P, *shape) of the loss in the order of the task's parameters."""
        results = [self.task.arranged(self.task.normalise(images.detach().flatten(0, 1)))]
        for step, layer in zip(self.program, self.layers, strict=True):
            results.append(layer.forward(*(results[i] for i in step.inputs)))
        with torch.enable_grad():
            self.outputs = results[-1].requires_grad_()
            (self.errors,) = torch.autograd.grad(loss(self.outputs), self.outputs, create_graph=True)
        self._back(self.errors.detach(), lambda layer, slope, needed: layer.backward(slope, needed), image=False)
        found: Parameters = {}
        for layer in self.layers:
            found.update(layer.found)
            layer.found = {}  # what autograd returns must not hold what it came from: such a cycle stays in memory
        return tuple(found[name] for name in self.task.parameter_names)

    def slopes(self, along: Sequence[Tensor]) -> Tensor:
        """d/dx <gradients(x), along> (P, M, C, H, W)."""
        directions = dict(zip(self.task.parameter_names, along, strict=True))
        results: list[Tensor | None] = [None]
        for step, layer in zip(self.program, self.layers, strict=True):
            results.append(layer.tangent(directions, *(results[i] for i in step.inputs)))
        moved = results[-1]
        change = torch.zeros_like(self.outputs)
        if moved is not None and self.errors.requires_grad:  # the errors of a linear loss are constant
            (change,) = torch.autograd.grad(self.errors, self.outputs, moved)
        found = self._back(change, lambda layer, slope, needed: layer.cotangent(directions, slope), image=True)
        return (found / self.network.std.to(found)).view(*self.network.shape, *found.shape[1:])

    def _back(self, slope: Tensor, pass_back: Callable[[Layer, Tensor, bool], Tensor | None], *, image: bool) -> Tensor:
        """Pass slopes from the outputs to the image through all layers; the sum where a result is used twice."""
        slopes: dict[int, Tensor] = {len(self.program): slope}
        for index in reversed(range(len(self.program))):
            inputs = self.program[index].inputs
            back = pass_back(self.layers[index], slopes.pop(index + 1), image or inputs != (0,))
            for i in inputs:
                if back is not None:
                    slopes[i] = slopes[i] + back if i in slopes else back
        return slopes.get(0, slope)
