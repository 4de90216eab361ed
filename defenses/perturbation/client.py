"""LMT, the client's training on a perturbed model, and the equivalent plain model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakboard.defenses.perturbation.wiring import Wiring, wiring_of
from leakboard.federation.device import on_compute_device
from leakboard.federation.example_norms import example_norms
from leakboard.federation.example_passes import Factors, Network, Passes
from leakboard.federation.payload import Parameters
from leakboard.federation.separable import separable
from leakboard.federation.settings import Public
from leakboard.federation.task import arrangement, task_of

#: a gradient with respect to the perturbed weights, Psi and Phi
Parts = tuple[Parameters, Parameters, Parameters]


class ChannelScale(nn.Module):
    """Multiply every channel by its own number: a transitional layer, or an identity shortcut as a diagonal."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scale (N, C, ...); returns the same shape."""
        return x * self.scale.view(1, -1, *([1] * (x.ndim - 2)))


class ScaledReLU(ChannelScale):
    """A ReLU and the transitional layer after it."""

    def forward(self, x: Tensor) -> Tensor:
        """Rectify and scale (N, C, ...); returns the same shape."""
        return super().forward(torch.relu(x))


@dataclass(frozen=True)
class Expanded:
    """The public architecture: the network with transitional layers, the plain one, and their wiring."""

    network: nn.Module
    plain: nn.Module
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
    return Expanded(network, plain, wiring, transitional)


def expanded_of(public: Public, *, transitional: bool) -> Expanded:
    """The clients' network for these public settings; built once per process."""
    return _expanded(public.model_dump_json(), transitional)


def _replace(network: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, new)


@dataclass(frozen=True)
class Forward:
    """One forward pass: logits y_hat (B, C), alpha (B,), and the leaves for differentiation."""

    logits: Tensor
    alpha: Tensor
    leaves: dict[str, Tensor]

    def gradient(self, loss: Tensor) -> Parameters:
        """The gradient of a scalar with respect to every leaf; zero if it does not depend on a leaf."""
        found = torch.autograd.grad(loss, list(self.leaves.values()), retain_graph=True, allow_unused=True)
        pairs = zip(self.leaves.items(), found, strict=True)
        return {name: g if g is not None else torch.zeros_like(leaf) for (name, leaf), g in pairs}


def _run(
    network: nn.Module, last: str, tensors: Parameters, trained: tuple[str, ...], images: Tensor
) -> tuple[Forward, Tensor]:
    """Run a network; also returns the inputs (B, features) of its last layer."""
    leaves = {name: tensors[name].detach().requires_grad_() for name in trained}
    kept: list[Tensor] = []
    handle = network.get_submodule(last).register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    try:
        logits = cast(Tensor, functional_call(network, {**tensors, **leaves}, (images,)))
    finally:
        handle.remove()
    return Forward(logits, kept[0].sum(dim=1), leaves), kept[0]


def forward(expanded: Expanded, perturbed: Parameters, images: Tensor) -> Forward:
    """Run the perturbed model with its transitional layers on normalised images (B, C, H, W), as the paper does."""
    return _run(expanded.network, expanded.wiring.last.name, perturbed, expanded.trained, images)[0]


@dataclass(frozen=True)
class Collapsed:
    """The plain network with the same values as the perturbed one: what clients run.

    No transitional layer is computed: their diagonals are known, so they are first multiplied into the weights. Then
    plain = factor * perturbed, hence grad_perturbed = factor * grad_plain. `carried` (features,) turns the inputs of
    the last layer into the perturbed ones, whose sum is alpha.
    """

    tensors: Parameters
    factors: Parameters
    carried: Tensor

    def alpha(self, inputs: Tensor) -> Tensor:
        """alpha (B,) of the plain network's last inputs (B, features)."""
        return (inputs * self.carried.to(inputs)).sum(dim=1)

    def scaled(self, gradient: Parameters) -> Parameters:
        """The gradient with respect to the perturbed weights, of one with respect to the plain weights."""
        return {name: (value * self.factors[name].to(value)).contiguous() for name, value in gradient.items()}


def collapsed(expanded: Expanded, perturbed: Parameters) -> Collapsed:
    """The plain network of a perturbed model."""
    factors = plain_factors(perturbed, expanded)
    plain = {name: (factors[name] * perturbed[name].double()).to(perturbed[name].dtype) for name in factors}
    return Collapsed(plain, factors, factors[f"{expanded.wiring.last.name}.weight"][0])


def forward_collapsed(expanded: Expanded, perturbed: Parameters, images: Tensor) -> tuple[Forward, Parameters]:
    """The same values as `forward` from the plain network, and the factors of its gradients (`Collapsed`)."""
    model = collapsed(expanded, perturbed)
    return _forward_plain(expanded, model, images), model.factors


def _forward_plain(expanded: Expanded, model: Collapsed, images: Tensor) -> Forward:
    arranged = arrangement(expanded.plain)
    plain = {name: arranged(value) for name, value in model.tensors.items()}
    run, inputs = _run(expanded.plain, expanded.wiring.last.name, plain, expanded.trained, arranged(images))
    return Forward(run.logits, model.alpha(inputs), run.leaves)


def _scalars(logits: Tensor, alpha: Tensor, targets: Tensor, direction: Tensor | None) -> list[Tensor]:
    """What each example's gradients are of, (B,) each: grad_hat, then Psi (V1: one for each class), then Phi."""
    residual = logits - targets.to(logits)
    along = residual.unbind(1) if direction is None else [residual @ direction.to(residual)]
    return [0.5 * residual.square().sum(1), *(alpha * value for value in along), 0.5 * alpha.square()]


def _parts(gradients: Sequence[Parameters], direction: Tensor | None) -> Parts:
    """(grad_hat, Psi, Phi) of the gradients of `_scalars`: V1 stacks the classes' in front."""
    hidden, *along, phi = gradients
    psi = {n: torch.stack([part[n] for part in along]) for n in hidden} if direction is None else along[0]
    return hidden, psi, phi


@on_compute_device
def train(
    expanded: Expanded,
    perturbed: Parameters,
    direction: Tensor | None,
    images: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
) -> Parts:
    """LMT: (grad_hat, Psi, Phi) of a batch; `targets` (B, C) one-hot, `weights` (B,) of the examples (clipping).

    grad_hat = grad of mean 1/2 ||y_hat - y_bar||^2,  Phi = grad of mean 1/2 alpha^2, and Psi:
    V2 (direction r^a known): grad of mean alpha (y_hat - y_bar) . r^a, in the weights' shapes;
    V1 (direction None): one such gradient per class, stacked in front. One forward pass serves all.
    """
    model, known = collapsed(expanded, perturbed), separable(expanded.plain, tuple(images.shape[1:]))
    scale = images.new_ones(len(images)) if weights is None else weights.to(images)
    total: list[Parameters] = []
    for chosen in [slice(0, len(images))] if known is None else known.parts(images):
        run = _forward_plain(expanded, model, images[chosen])
        scalars = _scalars(run.logits, run.alpha, targets[chosen], direction)
        own = [run.gradient((scale[chosen] * scalar).sum() / len(images)) for scalar in scalars]
        pairs = zip(total, own, strict=True)
        total = [{name: t[name] + o[name] for name in t} for t, o in pairs] if total else own
    return _parts([model.scaled(gradient) for gradient in total], direction)


def passes_of(
    expanded: Expanded, model: Collapsed, direction: Tensor | None, images: Tensor, targets: Tensor
) -> Passes:
    """The passes that give each example's own (grad_hat, Psi, Phi), with respect to the plain weights."""
    network = Network(expanded.plain, model.tensors, expanded.trained, expanded.wiring.last.name)

    def scalars(logits: Tensor, inputs: Tensor, aims: Tensor) -> Sequence[Tensor]:
        return _scalars(logits, model.alpha(inputs), aims, direction)

    return Passes(network, images, targets, scalars)


@on_compute_device
def train_clipped(
    expanded: Expanded,
    perturbed: Parameters,
    direction: Tensor | None,
    images: Tensor,
    targets: Tensor,
    factors: Factors,
) -> tuple[Parts, Tensor] | None:
    """`train` with weights c_b (B,) that follow from each example's own parts, and these c_b.

    `factors` is asked after the passes of some examples. None if the network has layers that passes do not support.
    """
    model = collapsed(expanded, perturbed)
    passes = passes_of(expanded, model, direction, images, targets)
    if not passes.possible:
        return None
    signals = 3 if direction is not None else 2 + targets.shape[1]
    found, weights = passes.weighted(factors, signals=signals)
    return _parts([model.scaled(gradient) for gradient in found], direction), weights


@on_compute_device
def part_norms(
    expanded: Expanded, perturbed: Parameters, direction: Tensor | None, images: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """L2 norms (B,) of each example's own (grad_hat, Psi, Phi), over all their values; V2, no transitional layers."""
    assert direction is not None
    assert not expanded.transitional
    passes = passes_of(expanded, collapsed(expanded, perturbed), direction, images, targets)
    found = example_norms(passes.network, images, targets, passes.scalars)
    return found.unbind()  # type: ignore[return-value]  # three rows


def collapse(perturbed: Parameters, expanded: Expanded) -> Parameters:
    """The plain network (no transitional layers) that computes exactly the same y_hat: what a client really has."""
    return collapsed(expanded, perturbed).tensors


def plain_factors(perturbed: Parameters, expanded: Expanded) -> Parameters:
    """The factors (float64, in the weights' shapes or broadcast to them) with plain = factor * perturbed.

    Every diagonal is absorbed into the weights that read from it. The diagonal of an identity shortcut is absorbed into
    the weights of its block's sum, because positive scaling passes through a ReLU.
    """
    carried, summed = scales(perturbed, expanded)
    found: Parameters = {}
    for weight in expanded.wiring.weights:
        value = perturbed[f"{weight.name}.weight"]
        ones = torch.ones(1, dtype=torch.float64)
        columns = carried[weight.source].repeat_interleave(weight.repeat) if weight.source is not None else ones
        rows = 1 / summed[weight.target] if weight.target is not None else ones
        full = (rows[:, None] * columns[None, :]).expand(value.shape[0], value.shape[1])
        found[f"{weight.name}.weight"] = full.reshape(*full.shape, *([1] * (value.ndim - 2)))
        if weight.has_bias:
            found[f"{weight.name}.bias"] = rows.expand(value.shape[0])
    return found


def scales(perturbed: Parameters, expanded: Expanded) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """For each activation: its value and the sum before it, relative to the plain network's."""
    wiring = expanded.wiring
    carried: dict[int, Tensor] = {}
    summed: dict[int, Tensor] = {}
    for index, path in enumerate(wiring.relus):
        ones = torch.ones(wiring.channels[index], dtype=torch.float64)
        skip = next((skip for skip in wiring.skips if skip.target == index), None)
        diagonal = perturbed[f"{skip.path}.scale"].double() if skip and expanded.transitional else ones
        summed[index] = diagonal * carried[skip.source] if skip else ones
        scale = perturbed[f"{path}.scale"].double() if expanded.transitional else ones
        carried[index] = scale * summed[index]
    return carried, summed
