"""One forward and one backward pass over a batch that give every example's own gradient, layer by layer.

The weights are constants of the pass: it only computes the layers' inputs and the backward signals at their outputs.
Norms and weighted sums of the examples' gradients follow from these (`federation.layer_gradients`). Clipping needs no
second pass, because the signal of an example is linear in the weight of its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakboard.federation.layer_gradients import Layer, LayerGradients, supported
from leakboard.federation.payload import Parameters
from leakboard.federation.separable import Separable, separable
from leakboard.federation.task import arrangement, mixed_layers

#: logits (B, classes), inputs (B, features) of the last layer, targets (B, classes) -> scalars (B,) of the examples
Scalars = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Network:
    """A network with its tensors, the names of the trained ones, and its `last` layer.

    `mixed`: compute the layers in bfloat16 inside `mixed_precision`.
    """

    module: nn.Module
    tensors: Parameters
    trained: tuple[str, ...]
    last: str
    mixed: bool = False


@dataclass(frozen=True)
class Pass:
    """A pass over some examples of a batch, with S scalars for each: the gradients of the layers, by path."""

    chosen: slice
    layers: dict[str, LayerGradients]

    def norms(self, *, keep: bool = False) -> Tensor:
        """L2 norms (S, B) of the examples' gradients, over all layers; `keep` what `totals` can use."""
        squares = torch.stack([layer.squares(keep=keep) for layer in self.layers.values()]).sum(0)
        return squares.clamp(min=0).sqrt()  # rounding may make a zero negative

    def totals(self, weights: Tensor) -> list[Parameters]:
        """For each scalar: sum_b weights_b grad_b, by name; weights (B,)."""
        found: list[Parameters] = []
        for path, layer in self.layers.items():
            for index, (weight, bias) in enumerate(layer.totals(weights)):
                found += [{}] if index == len(found) else []
                found[index][f"{path}.weight"] = weight
                if bias is not None:
                    found[index][f"{path}.bias"] = bias
        return found


#: the weights (B,) of the examples of a pass, such as their clipping factors
Factors = Callable[[Pass], Tensor]


class Passes:
    """A network on a batch: normalised images (B, C, H, W), targets (B, classes), S scalars of each example."""

    def __init__(self, network: Network, images: Tensor, targets: Tensor, scalars: Scalars) -> None:
        self.network, self.images, self.targets, self.scalars = network, images, targets, scalars
        self._known = known_layers(network, images)

    @property
    def possible(self) -> bool:
        """Whether the network consists of known layers, all of them trained and used once."""
        return self._known is not None

    def norms(self) -> Tensor:
        """L2 norms (S, B) of the examples' gradients."""
        return torch.cat([self._run(chosen).norms() for chosen in self._parts(1)], dim=1)

    def weighted(self, factors: Factors, *, signals: int) -> tuple[list[Parameters], Tensor]:
        """1/B sum_b c_b grad_b for each of the S = `signals` scalars, and c_b (B,) = `factors` of each pass."""
        found: list[Parameters] = []
        weights = []
        for chosen in self._parts(signals):
            made = self._run(chosen)
            weights.append(factors(made))
            own = made.totals(weights[-1] / len(self.images))
            found = own if not found else [_sum(total, part) for total, part in zip(found, own, strict=True)]
        order = self.network.trained
        return [{name: total[name].contiguous() for name in order} for total in found], torch.cat(weights)

    def _parts(self, signals: int) -> list[slice]:
        assert self._known is not None
        return self._known.parts(self.images, signals)

    @torch.enable_grad()
    def _run(self, chosen: slice) -> Pass:
        assert self._known is not None
        module, arranged = self.network.module, arrangement(self.network.module)
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}

        def note(path: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def hook(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
                inputs[path] = given[0]
                # the weights are constants, so the graph starts at the first layers' outputs
                outputs[path] = made if made.requires_grad else made.requires_grad_()

            return hook

        images = arranged(self.images[chosen].detach())
        tensors = {name: arranged(value.detach()) for name, value in self.network.tensors.items()}
        module.eval()
        handles = [module.get_submodule(path).register_forward_hook(note(path)) for path in self._known.layers]
        try:
            with mixed_layers(images) if self.network.mixed else nullcontext():
                logits = cast(Tensor, functional_call(module, tensors, (images,)))
        finally:
            for handle in handles:
                handle.remove()
        ends = list(outputs.values())
        scalars = self.scalars(logits.to(images), inputs[self.network.last].to(images), self.targets[chosen])
        sums = [scalar.sum() for scalar in scalars]
        back = [torch.autograd.grad(s, ends, retain_graph=s is not sums[-1], allow_unused=True) for s in sums]
        layers = {}
        for path, *signals in zip(outputs, *back, strict=True):
            own = [None if signal is None else signal.to(images) for signal in signals]
            layers[path] = LayerGradients(cast(Layer, module.get_submodule(path)), inputs[path].to(images), own)
        return Pass(chosen, layers)


def _sum(first: Parameters, second: Parameters) -> Parameters:
    return {name: value + second[name] for name, value in first.items()}


def known_layers(network: Network, images: Tensor) -> Separable | None:
    """The layers of a network that a pass can handle, all of them trained completely and used once; otherwise None."""
    known = separable(network.module, tuple(images.shape[1:]))
    if known is None or network.last not in known.layers:
        return None
    layers = {path: network.module.get_submodule(path) for path in known.layers}
    if len({id(layer) for layer in layers.values()}) < len(known.layers) or not all(map(supported, layers.values())):
        return None
    own = [f"{path}.{name}" for path, layer in layers.items() for name, _ in layer.named_parameters()]
    return known if set(own) == set(network.trained) else None
