"""LMT, the client's training on a perturbed model, and the plain model that it amounts to."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from defenses.perturbation.wiring import Wiring, wiring_of
from federation.payload import Parameters
from federation.settings import Public
from federation.task import task_of


class ChannelScale(nn.Module):
    """Multiply every channel by its own number: a transitional layer, or an identity shortcut made a diagonal."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        return x * self.scale.view(1, -1, *([1] * (x.ndim - 2)))


class ScaledReLU(ChannelScale):
    """A ReLU and the transitional layer behind it."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        return super().forward(torch.relu(x))


@dataclass(frozen=True)
class Expanded:
    """The public architecture that clients run: the network with transitional layers, and its wiring."""

    network: nn.Module
    wiring: Wiring
    transitional: bool

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the true parameters (those of the odd layers)."""
        names = []
        for weight in self.wiring.weights:
            names += [f"{weight.name}.weight", *([f"{weight.name}.bias"] if weight.has_bias else [])]
        return tuple(names)


@cache
def _expanded(public_json: str, transitional: bool) -> Expanded:
    public = Public.model_validate_json(public_json)
    plain = task_of(public).skeleton()
    wiring = wiring_of(plain)
    network = copy.deepcopy(plain)
    if transitional:
        for path, channels in zip(wiring.relus, wiring.channels, strict=True):
            _replace(network, path, ScaledReLU(channels))
        for skip in wiring.skips:
            _replace(network, skip.path, ChannelScale(wiring.channels[skip.target]))
    return Expanded(network, wiring, transitional)


def expanded_of(public: Public, *, transitional: bool) -> Expanded:
    """The clients' network for these public settings; built once a process."""
    return _expanded(public.model_dump_json(), transitional)


def _replace(network: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, new)


@dataclass(frozen=True)
class Forward:
    """One forward pass on the perturbed model: logits y_hat (B, C), alpha (B,), and the leaves to differentiate by."""

    logits: Tensor
    alpha: Tensor
    leaves: list[Tensor]
    names: tuple[str, ...]

    def gradient(self, loss: Tensor) -> Parameters:
        """The gradient of a scalar by every true parameter; zero where it does not depend on one."""
        found = torch.autograd.grad(loss, self.leaves, retain_graph=True, allow_unused=True)
        pairs = zip(self.names, self.leaves, found, strict=True)
        return {name: g if g is not None else torch.zeros_like(leaf) for name, leaf, g in pairs}


def forward(expanded: Expanded, perturbed: Parameters, images: Tensor) -> Forward:
    """Run the perturbed model on normalised images (B, C, H, W)."""
    leaves = [perturbed[name].detach().requires_grad_() for name in expanded.trained]
    tensors = {**perturbed, **dict(zip(expanded.trained, leaves, strict=True))}
    kept: list[Tensor] = []
    last = expanded.network.get_submodule(expanded.wiring.last.name)
    handle = last.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    try:
        logits = cast(Tensor, functional_call(expanded.network, tensors, (images,)))
    finally:
        handle.remove()
    return Forward(logits, kept[0].sum(dim=1), leaves, expanded.trained)


def train(
    expanded: Expanded,
    perturbed: Parameters,
    direction: Tensor | None,
    images: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
) -> tuple[Parameters, Parameters, Parameters]:
    """LMT: (grad_hat, Psi, Phi) of a batch; `targets` (B, C) one-hot, `weights` (B,) of the examples (clipping).

    grad_hat = grad of mean 1/2 ||y_hat - y_bar||^2,  Phi = grad of mean 1/2 alpha^2, and Psi:
    V2 (direction r^a known): grad of mean alpha (y_hat - y_bar) . r^a, in the weights' shapes;
    V1 (direction None): one such gradient a class, stacked in front.
    """
    run = forward(expanded, perturbed, images)
    scale = torch.ones_like(run.alpha) if weights is None else weights.to(run.alpha)
    residual = run.logits - targets.to(run.logits)
    gradient = run.gradient((scale * 0.5 * residual.square().sum(1)).mean())
    phi = run.gradient((scale * 0.5 * run.alpha.square()).mean())
    if direction is not None:
        psi = run.gradient((scale * run.alpha * (residual @ direction.to(residual))).mean())
    else:
        parts = [run.gradient((scale * run.alpha * residual[:, c]).mean()) for c in range(residual.shape[1])]
        psi = {name: torch.stack([part[name] for part in parts]) for name in expanded.trained}
    return gradient, psi, phi


def collapse(perturbed: Parameters, expanded: Expanded) -> Parameters:
    """The plain network (no transitional layers) that computes exactly the same y_hat: what a client really holds.

    Every diagonal is absorbed into the weights that read from it; an identity shortcut's diagonal
    into the weights of its block's sum, since positive scaling passes through a ReLU.
    """
    if not expanded.transitional:
        return {name: perturbed[name].clone() for name in expanded.trained}
    wiring = expanded.wiring
    carried: dict[int, Tensor] = {}  # value after activation i = carried[i] * value in the plain network
    summed: dict[int, Tensor] = {}  # the sum before activation i = summed[i] * the plain one
    for index, path in enumerate(wiring.relus):
        skip = next((skip for skip in wiring.skips if skip.target == index), None)
        ones = torch.ones(wiring.channels[index], dtype=torch.float64)
        summed[index] = perturbed[f"{skip.path}.scale"].double() * carried[skip.source] if skip else ones
        carried[index] = perturbed[f"{path}.scale"].double() * summed[index]
    found: Parameters = {}
    for weight in wiring.weights:
        value = perturbed[f"{weight.name}.weight"]
        plain = value.double()
        if weight.source is not None:
            columns = carried[weight.source].repeat_interleave(weight.repeat)
            plain = plain * columns.view(1, -1, *([1] * (value.ndim - 2)))
        if weight.target is not None:
            plain = plain / summed[weight.target].view(-1, *([1] * (value.ndim - 1)))
        found[f"{weight.name}.weight"] = plain.to(value.dtype)
        if weight.has_bias:
            bias = perturbed[f"{weight.name}.bias"]
            rows = summed[weight.target] if weight.target is not None else torch.ones(len(bias), dtype=torch.float64)
            found[f"{weight.name}.bias"] = (bias.double() / rows).to(bias.dtype)
    return found
