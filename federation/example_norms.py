"""The norm of the gradient for each example of a batch.

A fully connected layer's gradient for example b is d_b a_b^T, with a_b its input and d_b the backward signal. Its norm
is |d_b| |a_b|, so one backward pass over the batch to the layers' outputs is enough (Goodfellow 2015,
arXiv:1510.01799): 20 times faster on a small mlp. Other networks go example by example (vmap): for convolutions,
patches times the backward signal was slower than that (measured: 1.5 times on a ResNet8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: number of examples whose gradients are held at once
CHUNK = 32
#: logits (B, classes), inputs (B, features) of the last layer, targets (B, classes) -> scalars (B,) of the examples
Scalars = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Network:
    """A network with its tensors, the names of the trained ones, and its `last` layer."""

    module: nn.Module
    tensors: Parameters
    trained: tuple[str, ...]
    last: str


def loss_norms(task: Task, model: Parameters, images: Tensor, labels: Tensor) -> Tensor:
    """L2 norms (B,) of the whole gradient of each example's own loss, for images (B, C, H, W) in [0, 1]."""
    last = task.parameter_names[-1].rpartition(".")[0]
    network = Network(task.skeleton(), {n: v.detach() for n, v in model.items()}, task.parameter_names, last)
    soft = nn.functional.one_hot(labels, task.public.classes).to(task.dtype)
    inputs = task.normalise(images.to(task.dtype))
    return example_norms(network, inputs, soft, lambda logits, hidden, aims: [task.losses(logits, aims)])[0]


def clip_factors(norms: Tensor, bound: float) -> Tensor:
    """c_b = min(1, bound / norm_b) of norms (B,); 0 if a norm is not finite.

    >>> clip_factors(torch.tensor([0.5, 4.0, torch.inf, torch.nan]), 1.0)
    tensor([1.0000, 0.2500, 0.0000, 0.0000])
    """
    return (bound / norms.clamp(min=1e-12)).clamp(max=1.0).nan_to_num(nan=0.0)


@torch.enable_grad()
def example_norms(network: Network, images: Tensor, targets: Tensor, scalars: Scalars) -> Tensor:
    """L2 norms (S, B) of the gradients of S scalars of each example, over all trained tensors together.

    `images` are normalised. There are no batch statistics: the network is in evaluation mode.
    """
    network.module.eval()
    layers = _layers(network)
    squares = None if layers is None else _by_layers(network, layers, images, targets, scalars)
    if squares is None:
        chunks = zip(torch.split(images, CHUNK), torch.split(targets, CHUNK), strict=True)
        squares = torch.cat([_by_examples(network, *chunk, scalars) for chunk in chunks], dim=1)
    return squares.sqrt()


#: modules that keep examples separate and have no weights: chains of these and of fully connected layers are supported
CHAIN = (nn.Flatten, nn.ReLU, nn.Identity)


def _layers(network: Network) -> dict[str, nn.Linear] | None:
    """The fully connected layers of a plain chain, by path; None if the network is anything else.

    A custom forward pass may use weights in ways that no hook sees (functional calls, rows folded into the batch). Only
    `nn.Sequential` is known not to do that.
    """
    if type(network.module) is not nn.Sequential:
        return None
    if not all(type(part) in (nn.Linear, *CHAIN) for part in network.module):
        return None
    found = {}
    for name in network.trained:
        path = name.rpartition(".")[0]
        layer = network.module.get_submodule(path)
        if type(layer) is not nn.Linear:
            return None
        found[path] = layer
    # a layer of which only a part is trained would be counted completely
    whole = {f"{path}.{name}" for path, layer in found.items() for name, _ in layer.named_parameters()}
    return found if whole == set(network.trained) else None


def _by_layers(
    network: Network, layers: dict[str, nn.Linear], images: Tensor, targets: Tensor, scalars: Scalars
) -> Tensor | None:
    """Squared norms (S, B); None if a layer is not used exactly once, with a supported shape."""
    inputs: dict[str, list[Tensor]] = {path: [] for path in (*layers, network.last)}
    outputs: dict[str, list[Tensor]] = {path: [] for path in (*layers, network.last)}

    def note(path: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            inputs[path].append(given[0])
            outputs[path].append(made)

        return hook

    handles = [network.module.get_submodule(path).register_forward_hook(note(path)) for path in inputs]
    try:
        # the weights are constants here, so the graph must start at the images
        leaf = images.detach().requires_grad_()
        logits = cast(Tensor, functional_call(network.module, network.tensors, (leaf,)))
    finally:
        for handle in handles:
            handle.remove()
    if any(len(made) != 1 for made in outputs.values()):
        return None
    if any(inputs[path][0].shape[:-1] != (len(images),) for path in layers):
        return None
    ends = [outputs[path][0] for path in layers]
    # the factors of |d_b|^2: |a_b|^2, and 1 for the bias
    given = [inputs[path][0].detach().square().sum(1) + (layer.bias is not None) for path, layer in layers.items()]
    found = []
    for scalar in scalars(logits, inputs[network.last][0], targets):
        back = torch.autograd.grad(scalar.sum(), ends, retain_graph=True, allow_unused=True)
        squares = torch.zeros_like(given[0])
        for length, slope in zip(given, back, strict=True):
            if slope is not None:
                squares = squares + length * slope.square().sum(1)
        found.append(squares)
    return torch.stack(found)


def _by_examples(network: Network, images: Tensor, targets: Tensor, scalars: Scalars) -> Tensor:
    """Squared norms (S, B), from each example's own gradient."""
    module, tensors = network.module, network.tensors
    others = {name: value for name, value in tensors.items() if name not in network.trained}

    def of_one(weights: Parameters, image: Tensor, target: Tensor) -> Tensor:
        kept: list[Tensor] = []
        hook = module.get_submodule(network.last).register_forward_pre_hook(lambda module, given: kept.append(given[0]))
        try:
            logits = cast(Tensor, functional_call(module, {**others, **weights}, (image[None],)))
        finally:
            hook.remove()
        return torch.cat(list(scalars(logits, kept[0] if kept else logits, target[None])))

    weights = {name: tensors[name] for name in network.trained}
    if len(images) == 1:  # one example is faster without vmap: 1 ms instead of 4 on a small network
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        ends = of_one(leaves, images[0], targets[0])
        back = [torch.autograd.grad(end, list(leaves.values()), retain_graph=True, allow_unused=True) for end in ends]
        return torch.stack([sum((g.square().sum() for g in own if g is not None), ends.new_zeros(())) for own in back])[
            :, None
        ]
    parts: Parameters = vmap(jacrev(of_one), in_dims=(None, 0, 0))(weights, images, targets)
    return torch.stack([part.flatten(2).square().sum(2) for part in parts.values()]).sum(0).T
