"""The public learning task: network, loss and normalisation, as functions of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakboard.core import registry
from leakboard.federation.device import on_compute_device
from leakboard.federation.models.base import Model
from leakboard.federation.payload import Parameters
from leakboard.federation.separable import separable
from leakboard.federation.settings import Public

_mixed: ContextVar[bool] = ContextVar("mixed precision", default=False)


@contextmanager
def mixed_precision(enabled: bool = True) -> Iterator[None]:
    """In this block `Task.gradient` computes layers in bfloat16 (autocast); weights, loss and gradients keep their
    precision.

    For models that only need to be similar, not equal (shadows). It is faster if the processor computes in bfloat16
    (AVX-512 or AMX); otherwise torch emulates it and is many times slower.
    """
    token = _mixed.set(enabled)
    try:
        yield
    finally:
        _mixed.reset(token)


def mixed_layers(images: Tensor) -> torch.autocast:
    """The block in which a network's layers are computed: in bfloat16 inside `mixed_precision`, otherwise as usual."""
    return torch.autocast(images.device.type, torch.bfloat16, enabled=_mixed.get())


class Task:
    """A network without its own weights: every function takes the parameters.

    `parameters` are trained; `buffers` (batch-norm statistics) are not. Images are in [0, 1] and are normalised here,
    so that no other code has to know how.
    """

    def __init__(self, public: Public) -> None:
        self.public = public
        with torch.random.fork_rng(devices=[]):  # building draws weights that are not used
            self._network = self._built()
        self.dtype: torch.dtype = getattr(torch, public.training.precision)
        self.parameter_names = tuple(name for name, _ in self._network.named_parameters())
        self.buffer_names = tuple(name for name, _ in self._network.named_buffers())
        self.arranged = arrangement(self._network)
        self._mean = torch.tensor(public.mean).view(-1, 1, 1)
        self._std = torch.tensor(public.std).view(-1, 1, 1)

    def _built(self) -> nn.Module:
        """A freshly initialised network."""
        model = cast(Model, registry.create("model", self.public.model, self.public.model_parameters))
        return model.build(self.public.shape, self.public.classes)

    def skeleton(self) -> nn.Module:
        """The network's architecture; its weights have no meaning."""
        return self._network

    def initial(self, generator_seed: int) -> Parameters:
        """Freshly initialised parameters and buffers (torch's default initialisation), from a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator_seed)
            network = self._built()
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        return {
            name: tensor.detach().to(self.dtype) if tensor.is_floating_point() else tensor.detach().clone()
            for name, tensor in tensors.items()
        }

    def normalise(self, images: Tensor) -> Tensor:
        """(images - mean) / std, per channel."""
        return (images - self._mean.to(images)) / self._std.to(images)

    def logits(self, model: Parameters, images: Tensor, *, train: bool = False) -> Tensor:
        """Logits (N, classes) of images (N, C, H, W) in [0, 1]; differentiable in both arguments.

        In train mode batch norm uses the batch's own statistics and updates `model`'s buffers in place.
        """
        self._network.train(train)
        return cast(Tensor, functional_call(self._network, model, (self.normalise(images),)))

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss (N,) of each record; labels are classes (N,) or probabilities (N, classes).

        mse: 1/2 ||logits - onehot||^2 (docs/decisions.md, 9.5); ce: cross-entropy.
        """
        if self.public.training.loss == "ce":
            return nn.functional.cross_entropy(logits, labels, reduction="none")
        target = labels if labels.ndim == 2 else nn.functional.one_hot(labels, logits.shape[1])
        return 0.5 * (logits - target.to(logits)).square().sum(dim=1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over a batch."""
        return self.losses(logits, labels).mean()

    @on_compute_device
    def gradient(
        self, model: Parameters, images: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> tuple[Parameters, Parameters]:
        """The gradient of the mean loss over a batch, and the buffers after training on it.

        Computed in the model's own precision. `weights` (N,) multiply the records' losses before the mean. If no layer
        mixes examples, the sum goes over chunks that fit into the processor's cache (`federation.separable`).
        """
        arranged = self.arranged
        leaves = {name: arranged(model[name].detach()).requires_grad_() for name in self.parameter_names}
        buffers = {name: model[name].detach().clone() for name in self.buffer_names}
        total: tuple[Tensor, ...] = ()
        for chosen in self.parts(images):
            own = None if weights is None else weights[chosen]
            loss = self._part_of_loss({**leaves, **buffers}, images[chosen], labels[chosen], own, len(images))
            found = torch.autograd.grad(loss, list(leaves.values()))
            total = tuple(t + g for t, g in zip(total, found, strict=True)) if total else found
        return {name: g.contiguous() for name, g in zip(leaves, total, strict=True)}, buffers

    def parts(self, images: Tensor) -> list[slice]:
        """The chunks of a batch (N, C, H, W); the whole batch if the network may mix its examples."""
        known = separable(self._network, self.public.shape)
        return [slice(0, len(images))] if known is None else known.parts(images)

    def _part_of_loss(
        self, model: Parameters, images: Tensor, labels: Tensor, weights: Tensor | None, count: int
    ) -> Tensor:
        """What these records contribute to the mean loss over `count` records; differentiable in the model."""
        dtype = model[self.parameter_names[0]].dtype
        with mixed_layers(images):
            logits = self.logits(model, self.arranged(images.to(dtype)), train=True)
        losses = self.losses(logits.to(dtype), labels)
        losses = losses if weights is None else weights.to(losses) * losses
        return losses.mean() if len(losses) == count else losses.sum() / count

    @torch.no_grad()
    def predict(self, model: Parameters, images: Tensor, batch: int = 128) -> Tensor:
        """Logits (N, classes) in eval mode, batch by batch, without gradients.

        The default batch fits into the processor's cache: with 512 a ResNet8 takes 2.5 times as long.
        """
        parts = [self.logits(model, chunk.to(self.dtype)) for chunk in torch.split(images, batch)]
        return torch.cat(parts) if parts else torch.empty(0, self.public.classes, device=images.device)

    def __reduce__(self) -> tuple[Callable[[Public], Task], tuple[Public]]:
        return task_of, (self.public,)


def arrangement(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The memory layout of images and weights for a network: channels_last if that is safe, otherwise unchanged.

    Convolutions on a CPU prefer channels_last (measured: 1.3 times faster on a ResNet20). But torch 2.13's backward
    pass of a strided 1x1 convolution with fewer than 8 input channels corrupts the heap in that layout.
    """
    risky = any(
        isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and max(layer.kernel_size) == 1 and layer.in_channels < 8
        for layer in network.modules()
    )
    return torch.Tensor.contiguous if risky else channels_last


def channels_last(value: Tensor) -> Tensor:
    """A four-dimensional tensor in channels_last layout; any other tensor unchanged.

    With one channel both layouts are the same memory, so torch leaves the strides as they are, and convolutions read
    them as the other layout: the whole network then runs in that one. So the strides are set here (measured: the
    gradient of 160 images with one channel takes 35 instead of 53 ms on a convnet).

    >>> channels_last(torch.zeros(2, 1, 4, 4)).stride()
    (16, 1, 4, 1)
    """
    if value.ndim != 4:
        return value
    value = value.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = value.shape
    return value if channels > 1 else value.as_strided(value.shape, (height * width, 1, width, 1))


@cache
def _task_of(public_json: str) -> Task:
    return Task(Public.model_validate_json(public_json))


def task_of(public: Public) -> Task:
    """The task of these public settings; built once per process."""
    return _task_of(public.model_dump_json())
