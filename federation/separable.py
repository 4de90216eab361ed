"""Networks that compute each example on its own, and how many examples they should compute at once.

A batch may be cut into chunks only if no layer mixes examples (batch norm in train mode does). Chunks are faster:
activations that were just written are still in the processor's cache when the next layer reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from leakboard.federation.models.base import Residual

#: the largest output of a layer over all examples of a chunk: 2^21 values are 8 MiB in float32, a quarter of a usual
#: L3 cache, because a layer reads one such tensor and writes another. Measured on convnet (width 16 / 32 / 64) and
#: ResNet20: 128 / 64 / 32 / 128 examples are within 5 % of the best size; 1,000 at once take 1.3 to 1.9 times as long
VALUES = 2**21
#: layers without weights that keep examples separate
PLAIN = (
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.AvgPool2d,
    nn.Identity,
    nn.MaxPool2d,
    nn.ReLU,
    nn.Sigmoid,
    nn.Tanh,
)
#: layers with weights that keep examples separate
WEIGHTED = (nn.Conv2d, nn.Linear)


@dataclass(frozen=True)
class Separable:
    """A network that computes each example on its own: the paths of its layers with weights, and its chunk size."""

    layers: tuple[str, ...]
    chunk: int

    def parts(self, images: Tensor, share: int = 1) -> list[slice]:
        """Slices of a batch (B, ...) of nearly equal length, of at most chunk / share examples (at least 16).

        A GPU gets the whole batch: it has no such cache, and many small kernels would be slower.
        """
        most = max(16, self.chunk // share) if images.device.type == "cpu" else len(images)
        count = max(1, -(-len(images) // max(1, most)))
        edges = [len(images) * i // count for i in range(count + 1)]
        return [slice(low, high) for low, high in itertools.pairwise(edges)]


@lru_cache(maxsize=8)
def separable(network: nn.Module, shape: tuple[int, ...]) -> Separable | None:
    """What is known about a network for images of a shape (C, H, W); None if it might mix examples.

    Only trees of known layers are accepted: a custom forward pass may do anything. One image passes through the
    network (its own weights do not matter), to see how large the layers' outputs are.
    """
    if not all(_known(module) for _, module in _leaves("", network)):
        return None
    found: list[int] = []
    rows: list[bool] = []

    def note(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        found.append(made.numel())
        rows.append(not isinstance(module, nn.Linear) or given[0].ndim == 2)

    hooks = [module.register_forward_hook(note) for module in network.modules()]
    try:
        like = next(network.parameters(), torch.empty(0))
        with torch.no_grad():
            network(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
    finally:
        for hook in hooks:
            hook.remove()
    if not all(rows):  # a linear layer on more than one row per example
        return None
    paths = tuple(path for path, module in _leaves("", network) if isinstance(module, WEIGHTED))
    return Separable(paths, max(1, VALUES // max(found)))


def _leaves(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers inside known containers, with their paths; a layer that is used twice comes twice."""
    if type(module).forward not in (nn.Sequential.forward, Residual.forward):
        yield path, module
        return
    for name, child in module._modules.items():  # named_children() would omit a layer's second use
        assert child is not None
        yield from _leaves(f"{path}.{name}" if path else name, child)


def _known(layer: nn.Module) -> bool:
    """Whether a layer computes each example on its own; its class must be exactly the known one."""
    if getattr(layer, "inplace", False):  # it would change what another layer has kept
        return False
    if type(layer) is nn.Flatten:
        return layer.start_dim >= 1
    return type(layer) in (*PLAIN, *WEIGHTED)
