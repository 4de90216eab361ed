"""The four passes through each kind of layer: forward, back, tangents forward, and tangents back.

For a layer y = f(x, w), the slope s of a loss in y, and a direction v of the weights, with R for the change along v:

    forward    y = f(x, w)                        back           s_x = f_x^T s,  and the gradient f_w^T s
    tangent    R y = f_x R x + f_w v              cotangent      R s_x = f_x^T R s + (R f_x)^T s
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from leakboard.attacks.reconstruction.matching.program import LINEAR, Step
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task, channels_last

Pair = tuple[int, int]
#: stride, padding, dilation
How = tuple[Pair, Pair, Pair]

#: channels from which matrix products are faster than convolutions in groups
WIDE = 64
#: channels up to which slopes back to the input are faster by products: those of images
THIN = 4

_backward = torch.ops.aten.convolution_backward
_where_positive = torch.ops.aten.threshold_backward


#: makes a layer for one evaluation, which holds what its passes need of each other
Maker = Callable[[], "Layer"]


class Layer:
    """A layer without parameters whose inputs are added; other kinds override its passes."""

    def __init__(self) -> None:
        #: gradients (P, *shape) of the layer's parameters by name, after the pass back
        self.found: Parameters = {}

    def forward(self, *inputs: Tensor) -> Tensor:
        """The result of the inputs (P * M, ...)."""
        return inputs[0] + inputs[1]

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        """The slope of each input, from that of the result; None if it is not needed."""
        return slope

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        """The change of the result if the parameters move along (P, *shape) and the inputs change; None: no change."""
        changes = [change for change in inputs if change is not None]
        return changes[0] + changes[1] if len(changes) == 2 else next(iter(changes), None)

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        """The change of an input's slope, from that of the result's slope."""
        return slope


def maker_of(
    step: Step, task: Task, model: Parameters, shape: Sequence[int], own: Collection[str], bend: float = 0.0
) -> Maker:
    """What makes the passes of a step, for images of `shape` (P, M, ...).

    Tensors of the model that are named in `own` are stacks (P, *shape). With a `bend` the kink of a ReLU has a width.
    """
    module, name, (problems, records) = step.module, step.name, shape
    if isinstance(module, nn.Linear | nn.Conv2d):
        given = {n: model[f"{name}.{n}"].detach() for n, _ in module.named_parameters()}
        stacks = {n: t if f"{name}.{n}" in own else t.expand(problems, *t.shape) for n, t in given.items()}
        if isinstance(module, nn.Linear):
            return partial(_Dense, name, stacks["weight"], stacks.get("bias"))
        how = cast(How, (module.stride, module.padding, module.dilation))
        kind = _Convolution
        if task.arranged is channels_last and _keeps_size(module):
            kind = _Single if problems * records == 1 else kind
            kind = _Thin if problems > 1 and module.in_channels <= THIN else kind
            kind = _Products if problems > 1 and module.in_channels >= WIDE else kind
        return partial(kind, name, task.arranged(stacks["weight"][0]), stacks.get("bias"), problems, how)
    kinds: dict[type[nn.Module], type[Layer]] = {nn.ReLU: _Relu, nn.Flatten: _Flat, nn.Identity: _Same}
    if module is None:
        return Layer
    if isinstance(module, nn.ReLU) and bend:
        return partial(_BentRelu, bend, problems)
    return kinds.get(type(module)) or partial(_Fixed if isinstance(module, LINEAR) else _Smooth, module)


class _Relu(Layer):
    """max(x, 0)."""

    def forward(self, *inputs: Tensor) -> Tensor:
        self.result = inputs[0].relu()
        return self.result

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        return cast(Tensor, _where_positive(slope, self.result, 0))

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        return None if inputs[0] is None else self.backward(inputs[0], True)

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        return cast(Tensor, _where_positive(slope, self.result, 0))


class _BentRelu(_Relu):
    """max(x, 0), with a surrogate for its second derivative, which is 0 almost everywhere.

    The surrogate is a triangle around the kink, f''(x) = max(0, 1 - |x| / w) / w. Its integral is 1, the jump of the
    mask. Its half-width w is `bend` times the deviation of a problem's pre-activations. Values and gradients stay
    exact; only the derivative of a gradient in the image learns that masks can change (Neftci et al. 2019 do so for
    spiking networks).
    """

    def __init__(self, bend: float, problems: int) -> None:
        super().__init__()
        self.bend, self.problems = bend, problems

    def forward(self, *inputs: Tensor) -> Tensor:
        self.x = inputs[0]
        return super().forward(*inputs)

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        self.slope = slope
        return super().backward(slope, needed)

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        self.change = inputs[0]
        return None if inputs[0] is None else cast(Tensor, _where_positive(inputs[0], self.result, 0))

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        straight = super().cotangent(along, slope)
        if self.change is None:
            return straight
        own = self.x.reshape(self.problems, -1)
        width = (self.bend * own.std(1)).clamp(min=1e-12).repeat_interleave(len(self.x) // self.problems)
        width = width.view(-1, *[1] * (self.x.ndim - 1))
        bump = (1 - self.x.abs() / width).clamp(min=0) / width
        return straight + bump * self.slope * self.change


class _Same(Layer):
    """x."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0]


class _Flat(Layer):
    """(N, C, H, W) to (N, C * H * W)."""

    def forward(self, *inputs: Tensor) -> Tensor:
        self.shape = inputs[0].shape
        return inputs[0].flatten(1)

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        return slope.view(self.shape)

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        return None if inputs[0] is None else inputs[0].flatten(1)

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        return slope.view(self.shape)


class _Fixed(Layer):
    """A linear map without parameters, such as a mean over pixels; automatic differentiation transposes it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            self.x = inputs[0].detach().requires_grad_()
            self.result = cast(Tensor, self.module(self.x))
        return self.result.detach()

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        return self.cotangent({}, slope)

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        return None if inputs[0] is None else cast(Tensor, self.module(inputs[0]))

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        return torch.autograd.grad(self.result, self.x, slope, retain_graph=True)[0]


class _Smooth(Layer):
    """f(x) for each value alone, with f' and f'' by automatic differentiation."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            x = inputs[0].detach().requires_grad_()
            result = self.module(x)
            (first,) = torch.autograd.grad(result, x, torch.ones_like(x), create_graph=True)
            zero = torch.zeros_like(x)
            second = torch.autograd.grad(first, x, torch.ones_like(x))[0] if first.requires_grad else zero
        self.first, self.second = first.detach(), second
        return cast(Tensor, result.detach())

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        self.slope = slope
        return slope * self.first

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        self.change = inputs[0]
        return None if inputs[0] is None else inputs[0] * self.first

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        bent = slope * self.first
        return bent if self.change is None else bent + self.slope * self.second * self.change


class _Dense(Layer):
    """Rows (P * M, inputs) times a stack of weights (P, outputs, inputs), plus a stack of biases (P, outputs)."""

    def __init__(self, name: str, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.name, self.weight, self.bias = name, weight, bias

    def _rows(self, x: Tensor) -> Tensor:
        return x.view(len(self.weight), -1, x.shape[1])

    def forward(self, *inputs: Tensor) -> Tensor:
        self.x = self._rows(inputs[0])
        out = self.x @ self.weight.mT
        return (out if self.bias is None else out + self.bias[:, None]).flatten(0, 1)

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        self.slope = self._rows(slope)
        self.found[f"{self.name}.weight"] = self.slope.mT @ self.x
        if self.bias is not None:
            self.found[f"{self.name}.bias"] = self.slope.sum(1)
        return (self.slope @ self.weight).flatten(0, 1) if needed else None

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        out = self.x @ along[f"{self.name}.weight"].mT
        if self.bias is not None:
            out = out + along[f"{self.name}.bias"][:, None]
        if inputs[0] is not None:
            out = torch.baddbmm(out, self._rows(inputs[0]), self.weight.mT)
        return out.flatten(0, 1)

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        out = self.slope @ along[f"{self.name}.weight"]
        return torch.baddbmm(out, self._rows(slope), self.weight).flatten(0, 1)


class _Convolution(Layer):
    """Images (P * M, C, H, W) through one weight (O, C, h, w), plus a stack of biases (P, O).

    The weight serves all images at once; gradients and directions (P, O, C, h, w) run in one group per problem.
    """

    def __init__(self, name: str, weight: Tensor, bias: Tensor | None, problems: int, how: How) -> None:
        super().__init__()
        self.name, self.weight, self.bias = name, weight, bias
        self.problems, self.how = problems, how

    def forward(self, *inputs: Tensor) -> Tensor:
        self.x = inputs[0]
        out = self._shared(self.x)
        return out if self.bias is None else self._plus(out, self.bias)

    def backward(self, slope: Tensor, needed: bool) -> Tensor | None:
        self.slope = slope
        self.found[f"{self.name}.weight"] = self._gradient()
        if self.bias is not None:
            self.found[f"{self.name}.bias"] = slope.view(self.problems, -1, *slope.shape[1:]).sum((1, 3, 4))
        return self._shared_back(slope) if needed else None

    def tangent(self, along: Parameters, *inputs: Tensor | None) -> Tensor | None:
        out = self._moved(along[f"{self.name}.weight"], inputs[0])
        return out if self.bias is None else self._plus(out, along[f"{self.name}.bias"])

    def cotangent(self, along: Parameters, slope: Tensor) -> Tensor:
        return self._moved_back(along[f"{self.name}.weight"], slope)

    def _plus(self, out: Tensor, bias: Tensor) -> Tensor:
        """Outputs plus the bias (P, O) of each problem."""
        return (out.view(self.problems, -1, *out.shape[1:]) + bias[:, None, :, None, None]).flatten(0, 1)

    def _shared(self, x: Tensor) -> Tensor:
        """x through the weight."""
        return conv2d(x, self.weight, None, *self.how)

    def _shared_back(self, slope: Tensor) -> Tensor:
        """A slope back through the weight."""
        return self._to_input(self.x, self.weight, slope)

    def _gradient(self) -> Tensor:
        """The gradients (P, O, C, h, w) of the weight."""
        many, shape = self.problems, self.weight.shape
        self.wide, self.wide_slope = self._side_by_side(self.x), self._side_by_side(self.slope)
        blank = self.weight.new_empty(1).expand(many * shape[0], *shape[1:])
        found = _backward(self.wide_slope, self.wide, blank, None, *self.how, False, (0, 0), many, (False, True, False))
        return cast(Tensor, found[1].view(many, *shape))

    def _moved(self, along: Tensor, change: Tensor | None) -> Tensor:
        """x through the direction (P, O, C, h, w), plus its change through the weight."""
        along = along.flatten(0, 1)
        if self.problems == 1 and change is not None:  # one convolution over twice the channels is faster than two
            return conv2d(torch.cat([change, self.x], dim=1), torch.cat([self.weight, along], dim=1), None, *self.how)
        own = self._one_by_one(conv2d(self.wide, along, None, *self.how, self.problems))
        return own if change is None else self._shared(change) + own

    def _moved_back(self, along: Tensor, change: Tensor) -> Tensor:
        """The slope back through the direction (P, O, C, h, w), plus its change back through the weight."""
        along = along.flatten(0, 1)
        if self.problems == 1:
            return self._to_input(self.x, torch.cat([self.weight, along]), torch.cat([change, self.slope], dim=1))
        own = self._one_by_one(self._to_input(self.wide, along, self.wide_slope, self.problems))
        return self._shared_back(change) + own

    def _to_input(self, x: Tensor, weight: Tensor, slope: Tensor, groups: int = 1) -> Tensor:
        """The slope of a convolution's input x, of which only the shape matters."""
        found = _backward(slope, x, weight, None, *self.how, False, (0, 0), groups, (True, False, False))
        return cast(Tensor, found[0])

    def _side_by_side(self, x: Tensor) -> Tensor:
        """(P * M, C, H, W) to (M, P * C, H, W), the problems as groups of channels, in the same memory layout."""
        if self.problems == 1:
            return x
        parts = x.view(self.problems, -1, *x.shape[1:])
        if x.is_contiguous():
            return parts.transpose(0, 1).flatten(1, 2)
        return parts.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)

    def _one_by_one(self, x: Tensor) -> Tensor:
        """(M, P * C, H, W) to (P * M, C, H, W), in the same memory layout."""
        if self.problems == 1:
            return x
        parts = x.view(len(x), self.problems, -1, *x.shape[2:]).transpose(0, 1)
        if x.is_contiguous():
            return parts.flatten(0, 1)
        return parts.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)


class _Single(_Convolution):
    """A convolution that keeps the size of an image (stride 1): its gradient is a product of the unfolded image.

    An image unfolds to rows (H * W, h * w * C), one per pixel, with all values that the kernel sees.
    """

    def _gradient(self) -> Tensor:
        self.wide, self.wide_slope = self.x, self.slope
        return self._product(self._unfolded(self.x))

    def _product(self, rows: Tensor) -> Tensor:
        """The gradients (P, O, C, h, w) of the weight, from the unfolded images."""
        out, inputs, *kernel = self.weight.shape
        found = torch.bmm(self._pixels(self.slope).mT, rows)
        return found.view(self.problems, out, *kernel, inputs).permute(0, 1, 4, 2, 3)

    def _unfolded(self, x: Tensor) -> Tensor:
        """(P * M, C, H, W) to rows (P, M * H * W, h * w * C)."""
        (count, inputs, height, width), (high, wide) = x.shape, self.weight.shape[2:]
        padded = x.new_zeros(count, height + high - 1, width + wide - 1, inputs)
        padded[:, high // 2 : high // 2 + height, wide // 2 : wide // 2 + width] = x.permute(0, 2, 3, 1)
        image, line, pixel, _ = padded.stride()
        seen = padded.as_strided((count, height, width, high, wide * inputs), (image, line, pixel, line, 1))
        return seen.reshape(self.problems, -1, high * wide * inputs)

    def _pixels(self, x: Tensor) -> Tensor:
        """(P * M, C, H, W) to (P, M * H * W, C)."""
        return x.permute(0, 2, 3, 1).reshape(self.problems, -1, x.shape[1])

    def _folded(self, rows: Tensor) -> Tensor:
        """Rows (P, M * H * W, C), or those of one image, to (P * M, C, H, W) in channels_last layout."""
        return rows.view(len(self.x), *self.x.shape[2:], -1).permute(0, 3, 1, 2)


class _Thin(_Convolution):
    """The same for images of few channels, of many problems: only slopes back are products, then 9 shifted sums.

    A convolution in groups with one or three channels per group leaves most of a vector register empty.
    """

    def _moved_back(self, along: Tensor, change: Tensor) -> Tensor:
        (count, inputs, height, width), (out, _, high, wide) = self.x.shape, self.weight.shape
        own = along.permute(0, 3, 4, 2, 1).reshape(self.problems, -1, out)
        shared = self.weight.permute(2, 3, 1, 0).reshape(1, -1, out).expand(self.problems, -1, -1)
        seen = torch.baddbmm(torch.bmm(own, self._pixels(self.slope)), shared, self._pixels(change))
        seen = seen.view(self.problems, high, wide, inputs, -1, height, width)
        found = seen.new_zeros(self.problems, inputs, seen.shape[4], height + high - 1, width + wide - 1)
        for i in range(high):
            for j in range(wide):
                found[..., i : i + height, j : j + width] += seen[:, i, j]
        middle = found[..., high // 2 : high // 2 + height, wide // 2 : wide // 2 + width]
        return middle.transpose(1, 2).reshape(count, inputs, height, width)

    def _pixels(self, x: Tensor) -> Tensor:
        """(P * M, C, H, W) to (P, C, M * H * W)."""
        return x.permute(0, 2, 3, 1).reshape(self.problems, -1, x.shape[1]).mT


class _Products(_Single):
    """The same for many problems, and directions by products too; back it is a product with the mirrored direction."""

    def _gradient(self) -> Tensor:
        self.rows = self._unfolded(self.x)
        return self._product(self.rows)

    def _moved(self, along: Tensor, change: Tensor | None) -> Tensor:
        if change is None:
            return self._folded(torch.bmm(self.rows, _flat(along).mT))
        return self._folded(torch.baddbmm(self._pixels(self._shared(change)), self.rows, _flat(along).mT))

    def _moved_back(self, along: Tensor, change: Tensor) -> Tensor:
        rows, mirrored = self._unfolded(self.slope), along.movedim(2, -1).flip(2, 3).movedim(1, 3).flatten(1, 3)
        return self._folded(torch.baddbmm(self._pixels(self._shared_back(change)), rows, mirrored))


def _flat(weight: Tensor) -> Tensor:
    """Weights (..., O, C, h, w) to (..., O, h * w * C)."""
    return weight.movedim(-3, -1).flatten(-3)


def _keeps_size(module: nn.Conv2d) -> bool:
    """Whether images keep their size: stride 1, no dilation, an odd kernel in the middle of the padding."""
    pairs = zip(module.kernel_size, cast(Pair, module.padding), strict=True)
    return set(module.stride) | set(module.dilation) == {1} and all(k == 2 * p + 1 for k, p in pairs)
