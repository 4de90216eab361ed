"""The norm of the gradient for each example of a batch, and the mean of gradients that were clipped by it.

Networks of known layers take one forward and one backward pass (`federation.example_passes`). Other networks go example
by example (vmap).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from leakboard.federation.device import on_compute_device
from leakboard.federation.example_passes import Network, Pass, Passes, Scalars
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: number of examples whose gradients are held at once if they go example by example
CHUNK = 32


@on_compute_device
def loss_norms(task: Task, model: Parameters, images: Tensor, labels: Tensor) -> Tensor:
    """L2 norms (B,) of the whole gradient of each example's own loss, for images (B, C, H, W) in [0, 1]."""
    passes = _passes(task, model, images, labels, mixed=False)
    return example_norms(passes.network, passes.images, passes.targets, passes.scalars)[0]


@on_compute_device
def clipped_gradient(
    task: Task, model: Parameters, images: Tensor, labels: Tensor, bound: float
) -> tuple[Parameters, Tensor]:
    """1/B sum_b c_b g_b with c_b = min(1, bound / ||g_b||), g_b the gradient of example b's loss, and the c_b (B,).

    A g_b that is not finite has c_b = 0, but 0 times such a value is not zero: see `building_blocks.finite`.
    """

    def factors(made: Pass) -> Tensor:
        return clip_factors(made.norms(keep=True)[0], bound)

    passes = _passes(task, model, images, labels, mixed=True)
    if passes.possible:
        (found,), own = passes.weighted(factors, signals=1)
        return found, own
    own = clip_factors(loss_norms(task, model, images, labels), bound)
    return task.gradient(model, images, labels, own)[0], own


def _passes(task: Task, model: Parameters, images: Tensor, labels: Tensor, *, mixed: bool) -> Passes:
    """The passes of a task's loss, in the model's own precision."""
    names, dtype = task.parameter_names, model[task.parameter_names[0]].dtype
    last = names[-1].rpartition(".")[0]
    network = Network(task.skeleton(), {n: v.detach() for n, v in model.items()}, names, last, mixed)
    soft = nn.functional.one_hot(labels, task.public.classes).to(dtype)
    return Passes(network, task.normalise(images.to(dtype)), soft, lambda logits, _, aims: [task.losses(logits, aims)])


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
    passes = Passes(network, images, targets, scalars)
    if passes.possible:
        return passes.norms()
    chunks = zip(torch.split(images, CHUNK), torch.split(targets, CHUNK), strict=True)
    return torch.cat([_by_examples(network, *chunk, scalars) for chunk in chunks], dim=1).sqrt()


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
