"""The gradient of a layer's weights for each example, from the layer's inputs and the backward signals at its outputs.

For example b, a fully connected layer with input a_b and signal d_b has the gradient d_b a_b^T, whose norm is
|d_b| |a_b| (Goodfellow 2015, arXiv:1510.01799). A convolution has the sum of that over its output positions p, with
a_b(p) the patch that p reads. Its norm is computed in one of two ways, whichever takes fewer products:

- from the gradient itself, matrix products for each example;
- from two Gram matrices: ||sum_p d(p) a(p)^T||^2 = sum_pq (d(p) . d(q)) (a(p) . a(q)), if there are few positions. With
  stride 1, patches' inner products are sums of the inputs' own along shifts, so no patch is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

Layer = nn.Conv2d | nn.Linear
#: number of values of the operands that are multiplied at once: 2 MiB in float32, about an L2 cache
OPERANDS = 2**19
#: the largest number of values of an example's gradients that are kept for the weighted sum
KEPT = 2**15
#: below this share of its largest possible value, a squared norm from Gram matrices is computed directly
CANCELLED = 2.0**-16


def supported(layer: nn.Module) -> bool:
    """Whether per-example gradients of a layer are computed here: zero padding, no groups, no dilation."""
    if type(layer) is nn.Linear:
        return True
    if type(layer) is not nn.Conv2d or layer.groups != 1 or layer.padding_mode != "zeros":
        return False
    return set(layer.dilation) == {1} and not isinstance(layer.padding, str)


class LayerGradients:
    """One layer in a pass over B examples, with S signals: inputs (B, ...), signals S x (B, ...), None if zero."""

    def __init__(self, layer: Layer, inputs: Tensor, signals: Sequence[Tensor | None]) -> None:
        self.layer, self.inputs, self.signals = layer, inputs.detach(), tuple(signals)
        #: gradients (B, values, S', outputs) of the S' signals that are not None, if they are kept
        self._kept: Tensor | None = None

    def squares(self, *, keep: bool = False) -> Tensor:
        """Squared norms (S, B) of the gradients of weight and bias together; 0 for a signal that is None.

        `keep`: store the gradients for `totals` if they were computed on the way and are small.
        """
        given = [signal for signal in self.signals if signal is not None]
        found = iter(self._squares(given, keep, None, None) if given else ())
        none = self.inputs.new_zeros(len(self.inputs))
        return torch.stack([none if signal is None else next(found) for signal in self.signals])

    def mixed_squares(self, mix: Sequence[float], outputs: Tensor, inputs: Tensor) -> Tensor:
        """Squared norms (B,) of outputs_i inputs_j sum_s mix_s grad_s at weight (i, j), and outputs_i at bias i.

        The factors are (outputs,) and (inputs,), or (1,).
        """
        total: Tensor | None = None
        for factor, signal in zip(mix, self.signals, strict=True):
            if signal is not None:
                scaled = signal if factor == 1 else signal * factor
                total = scaled if total is None else torch.add(total, signal, alpha=factor)
        if total is None:
            return self.inputs.new_zeros(len(self.inputs))
        return self._squares([total], False, outputs.to(total), inputs.to(total))[0]

    def _squares(
        self, signals: list[Tensor], keep: bool, outputs: Tensor | None, inputs: Tensor | None
    ) -> list[Tensor]:
        """Squared norms (B,) for each signal; the channels of signals and inputs are multiplied by factors first."""
        layer = self.layer
        if isinstance(layer, nn.Conv2d) and not _gram_is_cheaper(layer, self.inputs, signals[0]):
            found = self._direct(layer, signals, keep, outputs, inputs)
        else:
            given = self.inputs if inputs is None else self.inputs * _channels(inputs, self.inputs)
            ends = signals if outputs is None else [signal * _channels(outputs, signal) for signal in signals]
            if isinstance(layer, nn.Linear):
                found = [given.square().sum(1) * end.square().sum(1) for end in ends]
            else:
                patches = _patch_gram(layer, given, ends[0])
                found = [(patches * _gram(_rows(end))).sum((1, 2)) for end in ends]
                if any(_cancels(patches, end, own) for end, own in zip(ends, found, strict=True)):
                    found = self._direct(layer, signals, False, outputs, inputs)
        if layer.bias is not None:
            biases = [_bias(signal) if outputs is None else _bias(signal) * outputs for signal in signals]
            found = [square + bias.square().sum(1) for square, bias in zip(found, biases, strict=True)]
        return found

    def _direct(
        self, layer: nn.Conv2d, signals: list[Tensor], keep: bool, outputs: Tensor | None, inputs: Tensor | None
    ) -> list[Tensor]:
        """Squared norms (B,) for each signal, from the examples' gradients, which are kept if they are small."""
        keep = keep and layer.weight.numel() * len(signals) <= KEPT
        squares, kept = [], []
        for product in _products(layer, self.inputs, signals):
            values = product.square()
            if inputs is not None and outputs is not None:
                size = layer.kernel_size[0] * layer.kernel_size[1]
                columns = inputs.expand(layer.in_channels).repeat(size)  # values are ordered by position, then channel
                values = values * (columns.view(-1, 1, 1) * outputs).square()
            squares.append(values.sum((1, 3)))
            kept += [product] if keep else []
        self._kept = torch.cat(kept) if keep else None
        return list(torch.cat(squares).unbind(1))

    def totals(self, weights: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """For each signal: sum_b weights_b grad_b of weight and bias (None if the layer has none); weights (B,)."""
        own = weights.to(self.inputs)
        if self._kept is None:
            scaled = self.inputs * own.view(-1, *[1] * (self.inputs.ndim - 1))
            given = [self._weight(scaled, signal) for signal in self.signals if signal is not None]
        else:
            given = self._summed(self._kept, own)
        found = iter(given)
        return [
            (
                self.inputs.new_zeros(self.layer.weight.shape) if signal is None else next(found),
                None if self.layer.bias is None else self._bias_total(signal, own),
            )
            for signal in self.signals
        ]

    def _bias_total(self, signal: Tensor | None, weights: Tensor) -> Tensor:
        return self.inputs.new_zeros(self.layer.weight.shape[0]) if signal is None else weights @ _bias(signal)

    def _weight(self, inputs: Tensor, signal: Tensor) -> Tensor:
        """The gradient of the weight for the whole batch."""
        if isinstance(self.layer, nn.Linear):
            return signal.T @ inputs
        return _convolution_gradient(self.layer, inputs, signal)

    def _summed(self, products: Tensor, weights: Tensor) -> list[Tensor]:
        """Weighted sums of kept gradients (B, values, S', outputs), in the weight's shape."""
        layer = cast(nn.Conv2d, self.layer)
        total = (weights @ products.flatten(1)).view(products.shape[1:])
        shape = (*layer.kernel_size, layer.in_channels, layer.out_channels)
        return [part.reshape(shape).permute(3, 2, 0, 1) for part in total.unbind(1)]


def _bias(signal: Tensor) -> Tensor:
    """The examples' gradients (B, outputs) of the bias."""
    return signal.sum((2, 3)) if signal.ndim == 4 else signal


def _channels(factors: Tensor, like: Tensor) -> Tensor:
    """Factors (C,) in a shape that multiplies (B, C, ...)."""
    return factors.view(1, -1, *[1] * (like.ndim - 2))


def _rows(value: Tensor) -> Tensor:
    """(B, C, H, W) as (B, H W, C); no copy if it is channels_last."""
    return value.permute(0, 2, 3, 1).flatten(1, 2)


def _gram(rows: Tensor) -> Tensor:
    """Inner products (B, n, n) of rows (B, n, C)."""
    return torch.bmm(rows, rows.transpose(1, 2))


def _gram_is_cheaper(layer: nn.Conv2d, inputs: Tensor, signal: Tensor) -> bool:
    """Whether Gram matrices take less than half of the products of the gradient itself (which may be used twice)."""
    positions, read = signal[0, 0].numel(), inputs[0, 0].numel()
    size = layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]
    direct = positions * layer.out_channels * size
    if set(layer.stride) == {1}:
        return 2 * (read**2 * layer.in_channels + positions**2 * layer.out_channels) < direct
    return 2 * positions**2 * (size + layer.out_channels) < direct


def _patch_gram(layer: nn.Conv2d, inputs: Tensor, signal: Tensor) -> Tensor:
    """Inner products (B, P, P) of the patches that the P output positions read."""
    if set(layer.stride) != {1}:
        return _gram(_patches(layer, inputs, signal))
    # with stride 1: G(p, q) = sum over kernel positions k of inputs(p + k) . inputs(q + k); rows, then columns
    height, width = inputs.shape[2:]
    found = _gram(_rows(inputs)).view(-1, height, width, height, width)
    (tall, wide), (up, left), (high, broad) = layer.kernel_size, _padding(layer), signal.shape[2:]
    found = nn.functional.pad(found, (left, left, 0, 0, left, left))
    found = sum((found[:, :, j : j + broad, :, j : j + broad] for j in range(1, wide)), found[:, :, :broad, :, :broad])
    found = nn.functional.pad(found, (0, 0, up, up, 0, 0, up, up))
    found = sum((found[:, i : i + high, :, i : i + high] for i in range(1, tall)), found[:, :high, :, :high])
    return found.reshape(len(inputs), high * broad, high * broad)


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    return cast("tuple[int, int]", layer.padding)


def _patches(layer: nn.Conv2d, inputs: Tensor, signal: Tensor) -> Tensor:
    """The patches (B, P, kernel height * kernel width * C) that the P output positions read."""
    (tall, wide), (down, right), padded = layer.kernel_size, layer.stride, _padded(layer, inputs)
    batch, high, broad, size = padded.shape
    shape = (batch, *signal.shape[2:], tall, wide * size)  # the columns of a kernel row are neighbours in memory
    strides = (high * broad * size, down * broad * size, right * size, broad * size, 1)
    return padded.as_strided(shape, strides).reshape(batch, -1, tall * wide * size)


def _padded(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """Inputs as (B, H + 2 p, W + 2 q, C), contiguous."""
    up, left = _padding(layer)
    return nn.functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, left, left, up, up)).contiguous()


def _products(layer: nn.Conv2d, inputs: Tensor, signals: list[Tensor]) -> Iterator[Tensor]:
    """Gradients (n, kernel height * kernel width * C, S, outputs) of n examples at a time."""
    positions, width = signals[0][0, 0].numel(), layer.kernel_size[1] * layer.in_channels
    step = max(1, OPERANDS // (positions * (width + len(signals) * layer.out_channels)))
    for start in range(0, len(inputs), step):
        given = inputs[start : start + step]
        ends = [_rows(signal[start : start + step]) for signal in signals]
        end = ends[0] if len(ends) == 1 else torch.cat(ends, dim=2)
        yield _product(layer, given, signals[0], end).view(len(given), -1, len(signals), layer.out_channels)


def _product(layer: nn.Conv2d, inputs: Tensor, signal: Tensor, end: Tensor) -> Tensor:
    """sum_p patch(p) end(p)^T: (n, kernel height * kernel width * C, R) of signals end (n, P, R)."""
    high, broad = signal.shape[2:]
    if set(layer.stride) != {1} or layer.kernel_size[0] == 1:
        return torch.bmm(_patches(layer, inputs, signal).transpose(1, 2), end)
    # with stride 1, patches of one kernel row suffice: the next kernel row reads the same rows, `broad` positions later
    (tall, wide), padded = layer.kernel_size, _padded(layer, inputs)
    batch, rows, columns, size = padded.shape
    strides = (rows * columns * size, columns * size, size, 1)
    lines = padded.as_strided((batch, rows, broad, wide * size), strides).reshape(batch, -1, wide * size)
    starts = (lines[:, i * broad : (i + high) * broad].transpose(1, 2) for i in range(tall))
    return torch.cat([torch.bmm(start, end) for start in starts], dim=1)


def _cancels(patches: Tensor, end: Tensor, found: Tensor) -> bool:
    """Whether so much cancels in a squared norm from Gram matrices that float32 leaves no digit of it.

    The sum has terms of both signs, and none is larger than `most`. Whoever chooses the weights could otherwise make
    the norm of a large gradient come out as 0, and the gradient would not be clipped.
    """
    reach = patches.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    most = (reach * _rows(end).norm(dim=2)).sum(1).square()
    return not found.is_meta and bool((found < CANCELLED * most).any())  # meta: shapes without values


def _convolution_gradient(layer: nn.Conv2d, inputs: Tensor, signal: Tensor) -> Tensor:
    """The gradient of a convolution's weight over a batch."""
    like = inputs.new_empty(layer.weight.shape)
    if inputs.is_contiguous(memory_format=torch.channels_last) and not inputs.is_contiguous():
        like = like.contiguous(memory_format=torch.channels_last)
    settings = (layer.stride, layer.padding, layer.dilation, False, (0, 0), 1)
    found = torch.ops.aten.convolution_backward(signal, inputs, like, None, *settings, (False, True, False))
    return cast(Tensor, found[1])
