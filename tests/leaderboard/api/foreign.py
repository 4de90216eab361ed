"""Networks, images and gradients that no federation of ours made, for the tests of `lb.attack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakboard as lb
from leakboard.federation.payload import Parameters

SHAPE, CLASSES = (1, 16, 16), 5


def smooth(count: int, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> tuple[Tensor, Tensor]:
    """Images that are smooth, as photographs are, with labels."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator)
    labels = torch.arange(count) % CLASSES
    return nn.functional.interpolate(coarse, shape[1:], mode="bilinear"), labels


def convnet() -> nn.Module:
    """A user's own class, whose forward pass uses `view`."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 8, 3, padding=1)
            self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.last = nn.Linear(8 * 8 * 8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.second(torch.relu(self.first(x))))
            return self.last(x.view(len(x), -1))  # type: ignore[no-any-return]

    torch.manual_seed(1)
    return Net()


def perceptron() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def gradient_of(
    net: nn.Module, images: Tensor, labels: Tensor, loss: Callable[..., Tensor] | None = None
) -> Parameters:
    value = (loss or nn.CrossEntropyLoss())(net(images), labels)
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    return dict(zip(names, torch.autograd.grad(value, trained), strict=True))


def refusal(net: nn.Module | None = None, name: Any = "inverting-gradients", **changes: Any) -> str:
    """What the call says with one thing changed; `net` is asked for its own gradient."""
    model = net if net is not None else perceptron()
    images, labels = smooth(1)
    settings = {"gradient": gradient_of(model, images, labels), "shape": SHAPE, **changes}
    with pytest.raises(lb.UserError) as caught:
        lb.attack(name, model=model, **settings)
    (sentence,) = caught.value.problems
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence
