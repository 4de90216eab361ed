"""A network from gradients to images, and its training with a loss that ignores the order inside a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from leakboard.attacks.reconstruction.regression.ridge import Scaling
from leakboard.attacks.reconstruction.regression.sketch import Sketch
from leakboard.federation.payload import Parameters

#: examples per step of the training
BATCH = 128


@dataclass(frozen=True)
class Examples:
    """Features (N, d) and the images behind them (N, M, C, H, W)."""

    features: Tensor
    images: Tensor


def unordered_loss(made: Tensor, truth: Tensor) -> Tensor:
    """The mean squared error of images (N, M, D) under the best order of every batch; differentiable in `made`.

    Per batch: min over permutations s of mean_i ||made_s(i) - truth_i||^2 / D, by the Hungarian method (Wu et al.).

    >>> one = torch.tensor([[[0.0, 0.0], [1.0, 1.0]]])
    >>> float(unordered_loss(one.flip(1), one))
    0.0
    """
    if made.shape[1] == 1:
        return (made - truth).square().mean()
    with torch.no_grad():  # |a - b|^2 = |a|^2 + |b|^2 - 2 ab: the differences themselves would take M times the memory
        costs = made.square().sum(-1)[:, :, None] + truth.square().sum(-1)[:, None] - 2 * made @ truth.mT  # (N, M, M)
        orders = [torch.as_tensor(linear_sum_assignment(cost.T.numpy())[1]) for cost in costs]
    ordered = torch.stack([batch[order] for batch, order in zip(made, orders, strict=True)])
    return (ordered - truth).square().mean()


@dataclass(frozen=True)
class NetworkInverter:
    """images = mean + network(features). `explained` is 1 - error / (error of the mean image), both on held-out images.

    `curve` has that share after each epoch; the network is that of the best epoch.
    """

    sketch: Sketch
    scaling: Scaling
    network: nn.Module
    mean: Tensor
    explained: float
    curve: tuple[float, ...]

    def __call__(self, gradient: Parameters) -> Tensor:
        """The images (M, C, H, W) behind one gradient, in [0, 1]; the mean image if nothing was learned."""
        if self.explained <= 0:
            return self.mean.clone()
        with torch.no_grad():
            features = self.scaling(self.sketch({n: v[None] for n, v in gradient.items()}))
            found: Tensor = self.network(features)[0].view_as(self.mean)
        return (self.mean + found).clamp(0, 1)


def trained(
    sketch: Sketch,
    train: Examples,
    held_out: Examples,
    *,
    units: int,
    epochs: int,
    learning_rate: float,
    random: torch.Generator,
    stop: Callable[[], bool] = lambda: False,
) -> NetworkInverter:
    """Two hidden layers with ReLU, Adam with a learning rate that falls as a cosine, best epoch on held-out images."""
    scaling = _scaling_of(train.features, sketch)
    inputs, targets = scaling(train.features), train.images.flatten(2)
    mean = train.images.mean((0, 1)).expand(train.images.shape[1:])
    centre = mean.flatten(1)
    network = _network(inputs.shape[1], units, centre.numel(), random)
    unseen, truth = scaling(held_out.features), held_out.images.flatten(2)
    spread = float(unordered_loss(centre.expand_as(truth), truth)) or 1.0
    optimiser = torch.optim.Adam(network.parameters(), learning_rate, foreach=True)
    steps, step = epochs * math.ceil(len(inputs) / BATCH), 0
    best, kept, curve = 0.0, {n: v.clone() for n, v in network.state_dict().items()}, []
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(inputs), generator=random), BATCH):
            if stop():
                break
            optimiser.param_groups[0]["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            with torch.enable_grad():
                made = centre + network(inputs[chosen]).view(len(chosen), *centre.shape)
                loss = unordered_loss(made, targets[chosen])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            step += 1
        with torch.no_grad():
            made = centre + network(unseen).view_as(truth)
            curve.append(1 - float(unordered_loss(made, truth)) / spread)
        if curve[-1] > best:
            best, kept = curve[-1], {n: v.clone() for n, v in network.state_dict().items()}
        if stop():
            break
    network.load_state_dict(kept)
    return NetworkInverter(sketch, scaling, network, mean, best, tuple(curve))


def _scaling_of(features: Tensor, sketch: Sketch) -> Scaling:
    """Deviations from the mean; every tensor has the same share of a mean square of 1."""
    widths = list(sketch.sizes.values())
    scaling = Scaling.of(features, widths)
    return Scaling(scaling.mean, scaling.factor * math.sqrt(sum(widths) / len(widths)))


def _network(inputs: int, units: int, outputs: int, random: torch.Generator) -> nn.Sequential:
    """Weights by He et al. (2015); the last layer starts at a tenth of that, so that the first answer is the mean."""
    network = nn.Sequential(
        nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, outputs)
    )
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0, math.sqrt(2 / layer.in_features), generator=random)
                layer.bias.zero_()
                last = layer
        last.weight.mul_(0.1)
    return network
