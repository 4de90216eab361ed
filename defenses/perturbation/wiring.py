"""How a network's weights are connected: which activation each weight reads from and feeds into.

Perturbation multiplies whole channels. So it only needs, for every weight, the ReLU before its input and the ReLU
after its output. Pooling and flattening keep channels separate; a residual sum forces both of its branches to one
scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from leakboard.core.errors import Unsupported
from leakboard.federation.models.base import Residual

#: layers that keep channels separate and commute with positive scaling of a channel
CHANNELWISE = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Flatten, nn.Identity)
#: what a network may consist of, for the refusal of another
ACCEPTED = (
    "convolutions, linear layers, ReLUs, pooling, flattening, nn.Sequential and residual blocks, and no batch norm "
    "(norm: none)"
)


@dataclass(frozen=True)
class Weight:
    """A convolution or linear layer: reads activation `source`, feeds `target` (indices of ReLUs, None at the ends).

    `repeat` is the number of inputs of a linear layer per channel (positions after a flatten).
    """

    name: str
    source: int | None
    target: int | None
    repeat: int
    has_bias: bool


@dataclass(frozen=True)
class Skip:
    """An identity shortcut from activation `source` to the sum before activation `target`; `path` is its module."""

    path: str
    source: int
    target: int


@dataclass(frozen=True)
class Wiring:
    """All weights, identity shortcuts and activations (their modules and channels) of a network."""

    weights: tuple[Weight, ...]
    skips: tuple[Skip, ...]
    relus: tuple[str, ...]
    channels: tuple[int, ...]

    @property
    def last(self) -> Weight:
        """The layer that computes the logits."""
        return next(weight for weight in self.weights if weight.target is None)


@dataclass(frozen=True)
class _Point:
    """A position in the network: after activation `relu`, or (with `feeds`, `skips`) the sum before the next one."""

    relu: int | None = None
    channels: int = 0
    feeds: tuple[tuple[str, nn.Module, int | None, int], ...] = ()
    skips: tuple[tuple[str, int], ...] = ()


@dataclass
class _Walker:
    weights: list[Weight] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    relus: list[str] = field(default_factory=list)
    channels: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def walk(self, module: nn.Module, path: str, point: _Point) -> _Point:
        """Follow the data through a module."""
        if isinstance(module, nn.Sequential) and _unchanged(module, nn.Sequential):
            for name, child in module._modules.items():  # named_children() would omit a layer's second use
                assert child is not None
                point = self.walk(child, f"{path}.{name}" if path else name, point)
            return point
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._layer(module, path, point)
        if isinstance(module, nn.ReLU):
            return self._activation(path, point)
        if isinstance(module, Residual) and _unchanged(module, Residual):
            return self._residual(module, path, point)
        if isinstance(module, nn.Flatten) and any(isinstance(layer, nn.Conv2d) for _, layer, _, _ in point.feeds):
            raise Unsupported(f"model perturbation needs a ReLU between {point.feeds[0][0]} and the flattening {path}")
        if isinstance(module, CHANNELWISE):
            return point
        raise Unsupported(
            f"model perturbation cannot pass through {type(module).__name__} ({path or 'the network'}); it accepts "
            f"{ACCEPTED}"
        )

    def _layer(self, module: nn.Conv2d | nn.Linear, path: str, point: _Point) -> _Point:
        if point.feeds:
            raise Unsupported(f"model perturbation needs a ReLU between {point.feeds[0][0]} and {path}")
        if id(module) in self.used:
            raise Unsupported(f"model perturbation does not support layers that are used twice ({path})")
        self.used.add(id(module))
        if isinstance(module, nn.Conv2d):
            if module.groups != 1:
                raise Unsupported(f"model perturbation does not support grouped convolutions ({path})")
            return _Point(None, module.out_channels, ((path, module, point.relu, 1),))
        repeat = module.in_features // point.channels if point.relu is not None else 1
        return _Point(None, module.out_features, ((path, module, point.relu, repeat),))

    def _activation(self, path: str, point: _Point) -> _Point:
        if not point.feeds:
            return point  # after another ReLU or the images: it sees no new sum, only positive scales
        index = len(self.relus)
        self.relus.append(path)
        self.channels.append(point.channels)
        self._settle(point, index)
        return _Point(index, point.channels)

    def _residual(self, module: Residual, path: str, point: _Point) -> _Point:
        body = self.walk(module.body, f"{path}.body", point)
        if not body.feeds:
            raise Unsupported(f"model perturbation needs a layer without a ReLU at the end of {path}.body")
        if isinstance(module.shortcut, nn.Identity):
            if point.relu is None:
                raise Unsupported(f"model perturbation needs an activation before the shortcut {path}")
            joined = _Point(None, body.channels, body.feeds, ((f"{path}.shortcut", point.relu),))
        else:
            short = self.walk(module.shortcut, f"{path}.shortcut", point)
            if not short.feeds:
                raise Unsupported(f"model perturbation needs an identity or a layer as the shortcut {path}.shortcut")
            joined = _Point(None, body.channels, (*body.feeds, *short.feeds))
        return self._activation(f"{path}.activation", joined)

    def _settle(self, point: _Point, target: int | None) -> None:
        """Complete the layers and shortcuts that end here."""
        for name, module, source, repeat in point.feeds:
            self.weights.append(Weight(name, source, target, repeat, getattr(module, "bias", None) is not None))
        if target is not None:
            self.skips += [Skip(path, source, target) for path, source in point.skips]


def _unchanged(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module computes what its class computes: a subclass may define its own `forward`."""
    return type(module).forward is kind.forward


def wiring_of(network: nn.Module) -> Wiring:
    """The wiring of a network of supported layers; `Unsupported` names the first layer that is not supported."""
    walker = _Walker()
    end = walker.walk(network, "", _Point())
    if len(end.feeds) != 1 or not isinstance(end.feeds[0][1], nn.Linear) or not walker.relus:
        raise Unsupported("model perturbation needs a network with ReLUs that ends in one linear layer")
    walker._settle(end, None)
    return Wiring(tuple(walker.weights), tuple(walker.skips), tuple(walker.relus), tuple(walker.channels))
