"""Networks that model perturbation must, or must not, know how to pass; built as `module:networks.py:NAME`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leakboard.federation.models.base import Residual

Shape = tuple[int, int, int]


def pooled(shape: Shape, classes: int) -> nn.Module:
    """Max and average pooling, an identity and a projection skip, a ReLU used twice, a flatten: all with biases."""
    shared = nn.ReLU()
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1),
        nn.MaxPool2d(2),
        shared,
        nn.ReLU(),  # does nothing behind another one
        Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), shared, nn.Conv2d(4, 4, 3, padding=1))),
        nn.AvgPool2d(2),
        Residual(
            nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1)),
            nn.Sequential(nn.Conv2d(4, 6, 1)),
        ),
        nn.Identity(),
        nn.Flatten(),
        nn.Linear(6 * (shape[1] // 4) * (shape[2] // 4), 5),
        nn.ReLU(),
        nn.Linear(5, classes),
    )


def _features(shape: Shape) -> int:
    return math.prod(shape)


def two_linear(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(_features(shape), 5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, classes)
    )


def tied(shape: Shape, classes: int) -> nn.Module:
    layer = nn.Linear(5, 5)
    start = (nn.Flatten(), nn.Linear(_features(shape), 5), nn.ReLU())
    return nn.Sequential(*start, layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(5, classes))


def sigmoid(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(_features(shape), 5), nn.Sigmoid(), nn.Linear(5, classes))


def grouped(shape: Shape, classes: int) -> nn.Module:
    layers = (nn.Conv2d(shape[0], 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def pooled_shortcut(shape: Shape, classes: int) -> nn.Module:
    """A shortcut with no weights that is no identity: nothing there can take the factor."""
    block = Residual(nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.AvgPool2d(2))
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 1), nn.ReLU(), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


def active_body(shape: Shape, classes: int) -> nn.Module:
    """A block whose body ends in a ReLU: its sum has a branch that carries another factor."""
    block = Residual(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 1), nn.ReLU(), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


def flattened_before_relu(shape: Shape, classes: int) -> nn.Module:
    pixels = 4 * shape[1] * shape[2]
    return nn.Sequential(nn.Conv2d(shape[0], 4, 1), nn.Flatten(), nn.ReLU(), nn.Linear(pixels, classes))


class Backwards(nn.Sequential):
    """A Sequential that does not do what one expects of it."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return torch.tanh(x)


def own_forward(shape: Shape, classes: int) -> nn.Module:
    return Backwards(nn.Flatten(), nn.Linear(_features(shape), 5), nn.ReLU(), nn.Linear(5, classes))


def ends_in_relu(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(_features(shape), 5), nn.ReLU(), nn.Linear(5, classes), nn.ReLU())
