"""Each example's gradient has the length that a backward pass of its own gives, whichever way it is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakboard.federation import example_norms as module
from leakboard.federation import example_passes
from leakboard.federation.example_norms import CHUNK, clipped_gradient, example_norms, loss_norms
from leakboard.federation.example_passes import Network
from leakboard.federation.task import task_of
from tests.defenses.makings import flat, images_of, public_of


class Twice(nn.Module):
    """A layer that is used twice: the closed form would count it wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 6) to (B, 3)."""
        out: Tensor = self.last(torch.relu(self.inner(torch.relu(self.inner(x)))))
        return out


class Folded(nn.Module):
    """Rows of an example become rows of the batch: a layer's inputs are not the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(3, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 6) to (B, 3)."""
        out: Tensor = self.last(torch.relu(self.inner(x.reshape(-1, 3))).reshape(len(x), 8))
        return out


class Functional(nn.Module):
    """Weights that are also used without their layer: no hook sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 6) to (B, 3)."""
        out: Tensor = self.last(torch.relu(self.inner(x)) + nn.functional.linear(x, self.inner.weight.T))
        return out


NETWORKS = {
    "linear": (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)), "2", (6,)),
    "twice": (Twice(), "last", (6,)),
    "folded": (Folded(), "last", (6,)),
    "functional": (Functional(), "last", (6,)),
    "convolution": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)), "3", (1, 4, 4)),
}


def two_scalars(logits: Tensor, hidden: Tensor, aims: Tensor) -> list[Tensor]:
    """A loss of the logits, and something that does not pass the last layer."""
    return [0.5 * (logits - aims).square().sum(1), hidden.sum(1).square()]


@pytest.mark.parametrize("records", [1, 2, CHUNK + 3])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_norms_are_those_of_single_backward_passes(name: str, records: int) -> None:
    network, last, shape = NETWORKS[name]
    network = network.double()
    tensors = {key: value.detach() for key, value in network.named_parameters()}
    random = torch.Generator().manual_seed(records)
    images = torch.rand(records, *shape, generator=random, dtype=torch.float64)
    aims = torch.rand(records, 3, generator=random, dtype=torch.float64)
    with torch.no_grad():  # whoever asks
        found = example_norms(Network(network, tensors, tuple(tensors), last), images, aims, two_scalars)

    kept: list[Tensor] = []
    handle = network.get_submodule(last).register_forward_pre_hook(lambda layer, given: kept.append(given[0]))
    expected = torch.zeros(2, records, dtype=torch.float64)
    for b in range(records):
        for row in range(2):
            kept.clear()
            logits = network(images[b : b + 1])
            scalar = two_scalars(logits, kept[0], aims[b : b + 1])[row].sum()
            own = torch.autograd.grad(scalar, list(network.parameters()), allow_unused=True)
            expected[row, b] = sum(float(g.square().sum()) for g in own if g is not None) ** 0.5
    handle.remove()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_networks_with_their_own_forward_pass_go_example_by_example(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    by_examples = module._by_examples

    def noted(*given: Any) -> Tensor:
        ways.append("vmap")
        return by_examples(*given)

    monkeypatch.setattr(module, "_by_examples", noted)
    for name, (network, last, shape) in NETWORKS.items():
        tensors = {key: value.detach().float() for key, value in network.named_parameters()}
        ways.append(name)
        example_norms(
            Network(network.float(), tensors, tuple(tensors), last),
            torch.rand(2, *shape),
            torch.rand(2, 3),
            two_scalars,
        )
    assert ways == ["linear", "twice", "vmap", "folded", "vmap", "functional", "vmap", "convolution"]


MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [9, 7]},
    "convnet": {"width": 3},
    "resnet8": {"width": 4},  # strides, projections
    "resnet11": {"width": 4},  # 1x1 convolutions
    "resnet20": {"width": 16},  # Gram matrices at the last stage
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("model", list(MODELS))
def test_clipped_gradients_are_those_of_the_definition(model: str, bias: bool) -> None:
    """1/B sum_b min(1, bound / ||g_b||) g_b, with each g_b from a backward pass of its own."""
    public = public_of(model, {**MODELS[model], "bias": bias}, shape=(3, 16, 16), precision="float64")
    task = task_of(public)
    weights, images = task.initial(1), images_of(5, *public.shape).double()
    labels = torch.arange(5) % public.classes
    alone = [task.gradient(weights, images[b : b + 1], labels[b : b + 1])[0] for b in range(5)]
    norms = torch.stack([flat(gradient).norm() for gradient in alone])
    bound = 1.001 * float(norms.median())
    expected = {n: sum(min(1, bound / float(v)) * g[n] for v, g in zip(norms, alone, strict=True)) / 5 for n in weights}

    torch.testing.assert_close(loss_norms(task, weights, images, labels), norms, rtol=1e-9, atol=0)
    found, factors = clipped_gradient(task, weights, images, labels, bound)
    torch.testing.assert_close(factors, (bound / norms).clamp(max=1), rtol=1e-9, atol=0)
    assert 0 < int((factors < 1).sum()) < 5
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    assert all(value.is_contiguous() for value in found.values())


def test_clipping_without_known_layers_gives_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(public_of("resnet8", {"width": 4}, shape=(3, 8, 8), precision="float64"))
    images, labels = images_of(4, 3, 8, 8).double(), torch.arange(4) % task.public.classes
    quick = clipped_gradient(task, task.initial(0), images, labels, 0.1)
    monkeypatch.setattr(example_passes, "known_layers", lambda network, images: None)
    slow = clipped_gradient(task, task.initial(0), images, labels, 0.1)
    torch.testing.assert_close(quick, slow, rtol=1e-8, atol=1e-12)
