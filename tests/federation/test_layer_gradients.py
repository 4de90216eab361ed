"""A layer's per-example gradients have the norms and sums that single backward passes give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakboard.federation import layer_gradients
from leakboard.federation.layer_gradients import LayerGradients, supported

LAYERS: dict[str, tuple[nn.Conv2d | nn.Linear, tuple[int, ...]]] = {
    "padded": (nn.Conv2d(3, 5, 3, padding=1), (3, 9, 7)),
    "one input channel": (nn.Conv2d(1, 2, 3), (1, 6, 5)),
    "strided": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 9, 8)),
    "strided 1x1": (nn.Conv2d(4, 6, 1, stride=2), (4, 9, 8)),
    "gram": (nn.Conv2d(16, 16, 3, padding=1), (16, 3, 4)),
    "gram, odd kernel": (nn.Conv2d(16, 16, (3, 2), padding=(0, 1)), (16, 5, 4)),
    "gram, strided": (nn.Conv2d(16, 16, 3, stride=2, padding=1), (16, 4, 4)),
    "linear": (nn.Linear(7, 3), (7,)),
    "without bias": (nn.Conv2d(3, 5, 3, bias=False), (3, 6, 6)),
}
RECORDS = 5


def own_gradients(layer: nn.Module, inputs: Tensor, signal: Tensor) -> list[list[Tensor]]:
    """Each example's gradients of weight and bias, from a backward pass of its own."""
    rows = range(len(inputs))
    ends = [(layer(inputs[b : b + 1]) * signal[b : b + 1]).sum() for b in rows]
    return [list(torch.autograd.grad(end, list(layer.parameters()))) for end in ends]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", list(LAYERS))
def test_norms_and_sums(name: str, keep: bool, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_gradients, "OPERANDS", 1000)  # more than one portion
    layer, shape = LAYERS[name][0].double(), LAYERS[name][1]
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(RECORDS, *shape, generator=random, dtype=torch.float64)
    signals = [torch.randn(layer(inputs).shape, generator=random, dtype=torch.float64) for _ in range(2)]
    if last and inputs.ndim == 4:
        inputs, *signals = (value.contiguous(memory_format=torch.channels_last) for value in (inputs, *signals))
    made = LayerGradients(layer, inputs, [signals[0], None, signals[1]])
    squares, weights = made.squares(keep=keep), torch.rand(RECORDS, generator=random, dtype=torch.float64)
    totals = made.totals(weights)
    for row, signal in ((0, signals[0]), (2, signals[1])):
        own = own_gradients(layer, inputs, signal)
        expected = torch.stack([torch.stack([g.square().sum() for g in one]).sum() for one in own])
        torch.testing.assert_close(squares[row], expected)
        for part, total in enumerate(value for value in totals[row] if value is not None):
            wanted = torch.stack([w * one[part] for w, one in zip(weights, own, strict=True)]).sum(0)
            torch.testing.assert_close(total, wanted)
    assert not squares[1].any()
    assert not any(value.any() for value in totals[1] if value is not None)


@pytest.mark.parametrize("name", list(LAYERS))
def test_mixed_norms(name: str) -> None:
    """Norms of outputs_i inputs_j (grad_1 - 3 grad_2) at weight (i, j), and of outputs_i times it at bias i."""
    layer, shape = LAYERS[name][0].double(), LAYERS[name][1]
    inputs = torch.randn(RECORDS, *shape, dtype=torch.float64)
    first, second = (torch.randn(layer(inputs).shape, dtype=torch.float64) for _ in range(2))
    rows = 0.5 + torch.rand(layer.weight.shape[0], dtype=torch.float64)
    columns = 0.5 + torch.rand(layer.weight.shape[1], dtype=torch.float64)
    found = LayerGradients(layer, inputs, [first, None, second]).mixed_squares([1.0, 9.0, -3.0], rows, columns)
    expected = []
    for weight, *bias in own_gradients(layer, inputs, first - 3 * second):
        scaled = weight * rows.view(-1, *[1] * (weight.ndim - 1)) * columns.view(1, -1, *[1] * (weight.ndim - 2))
        expected.append(scaled.square().sum() + sum((value * rows).square().sum() for value in bias))
    torch.testing.assert_close(found, torch.stack(expected))


def test_both_ways_are_tested() -> None:
    ways = {}
    for name, (layer, shape) in LAYERS.items():
        if isinstance(layer, nn.Conv2d):
            inputs = torch.zeros(1, *shape, dtype=layer.weight.dtype)
            ways[name] = layer_gradients._gram_is_cheaper(layer, inputs, layer(inputs))
    assert ways == {name: name.startswith("gram") for name in ways}


def test_unusual_convolutions_are_not_supported() -> None:
    assert supported(nn.Conv2d(2, 2, 3, padding=1))
    odd = {"groups": 2}, {"dilation": 2}, {"padding": 1, "padding_mode": "circular"}, {"padding": "same"}
    assert not any(supported(nn.Conv2d(2, 2, 3, **one)) for one in odd)
    assert not supported(nn.ConvTranspose2d(2, 2, 3))


def test_a_norm_that_cancels_in_gram_matrices_is_not_zero() -> None:
    """Large inputs, and signals that sum to 0: float32 leaves nothing of the Gram matrices' product."""
    random = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    inputs = torch.rand(RECORDS, 64, 8, 8, generator=random) + 1e4
    signal = torch.randn(RECORDS, 64, 8, 8, generator=random)
    signal = signal - signal.mean((2, 3), keepdim=True)
    true = [g[0].double().square().sum() for g in own_gradients(layer, inputs, signal)]
    found = LayerGradients(layer, inputs, [signal]).squares()[0].double()
    assert torch.allclose(found, torch.stack(true), rtol=1e-2)
