"""How far a stolen model's weights are from the true ones, up to the rescaling that ReLU networks do not notice."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from core.errors import Unsupported
from defenses.perturbation.wiring import Weight, Wiring, wiring_of
from federation.payload import Parameters
from metrics.base import ExtractionMetric, ExtractionTruth, Score


def canonical_form(model: Parameters, network: nn.Module) -> Parameters:
    """The one member of a model's rescaling class whose hidden units have incoming weights of unit norm.

    relu(c z) = c relu(z) for c > 0, so a hidden unit's incoming row can be divided by any n > 0 if the weights that
    read the unit are multiplied by it. From the first layer to the last, n is the norm of the row as the layers before
    have left it (its bias included; both branches of a residual sum together). A unit behind an identity shortcut must
    keep the scale of the unit that the shortcut comes from. A row of zeros keeps its scale.

    Shapes: those of the model; returns float64. `Unsupported` names a layer (batch norm, for one) that ends this.
    Citation: Neyshabur et al. 2015 (the symmetry).

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> form = canonical_form({"0.weight": torch.tensor([[3.0, 4.0]]), "2.weight": torch.tensor([[2.0]])}, net)
    >>> {name: [round(x, 12) for x in value.flatten().tolist()] for name, value in form.items()}
    {'0.weight': [0.6, 0.8], '2.weight': [10.0]}
    """
    wiring = wiring_of(network)
    norms: dict[int, Tensor] = {}
    for relu in range(len(wiring.relus)):
        source = next((skip.source for skip in wiring.skips if skip.target == relu), None)
        norms[relu] = norms[source] if source is not None else _row_norms(model, wiring, relu, norms)
    form: Parameters = {}
    for weight in wiring.weights:
        for name, value in _read(model, weight, norms).items():
            form[name] = value if weight.target is None else value / _as_rows(norms[weight.target], value)
    return form


def _row_norms(model: Parameters, wiring: Wiring, relu: int, norms: dict[int, Tensor]) -> Tensor:
    """The norm (channels,) of everything that feeds each unit of an activation; 1 where nothing does."""
    feeds = [_read(model, weight, norms).values() for weight in wiring.weights if weight.target == relu]
    squares = [value.flatten(1).square().sum(1) if value.ndim > 1 else value.square() for f in feeds for value in f]
    norm = torch.stack(squares).sum(0).sqrt()
    return torch.where(norm > 0, norm, torch.ones_like(norm))


def _read(model: Parameters, weight: Weight, norms: dict[int, Tensor]) -> Parameters:
    """A layer's weight, with the scale of the units that it reads pushed into its columns, and its bias."""
    value = model[f"{weight.name}.weight"].double()
    if weight.source is not None:
        columns = norms[weight.source].repeat_interleave(weight.repeat)
        value = value * columns.view(1, -1, *([1] * (value.ndim - 2)))
    biases = {f"{weight.name}.bias": model[f"{weight.name}.bias"].double()} if weight.has_bias else {}
    return {f"{weight.name}.weight": value, **biases}


def _as_rows(norm: Tensor, value: Tensor) -> Tensor:
    return norm.view(-1, *([1] * (value.ndim - 1)))


def canonical_distance(stolen: Parameters, true: Parameters, network: nn.Module) -> tuple[float, dict[str, float]]:
    """Relative L2 distance between the canonical forms of two models, in all and tensor by tensor.

    d = || C(stolen) - C(true) || / || C(true) ||

    0 for every positive rescaling of the true model; the order of hidden units counts (none of our defenses hides it).

    Shapes: both models in the network's own; finite.
    Definition: SCHEMES 7(d); the symmetry is that of Neyshabur et al. 2015.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> true = {"0.weight": torch.tensor([[3.0, 4.0]]), "2.weight": torch.tensor([[2.0]])}
    >>> canonical_distance({"0.weight": 2 * true["0.weight"], "2.weight": true["2.weight"] / 2}, true, net)[0]
    0.0
    """
    first, second = canonical_form(stolen, network), canonical_form(true, network)
    apart = {name: float((first[name] - second[name]).norm()) for name in second}
    size = {name: float(value.norm()) for name, value in second.items()}
    whole = math.hypot(*apart.values()) / math.hypot(*size.values())
    return whole, {name: apart[name] / size[name] for name in second if size[name] > 0}


class CanonicalDistance(ExtractionMetric):
    """Relative distance of the stolen weights from the true ones, positive rescaling of hidden units divided out.

    Definition: `metrics.canonical_distance.canonical_distance`; the details have it tensor by tensor.
    """

    name: ClassVar[str] = "canonical_distance"
    citation: ClassVar[str] = "Neyshabur et al., Path-SGD: Path-Normalized Optimization (...), NeurIPS 2015"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: ExtractionTruth) -> Score:
        """The distance; None for networks without a canonical form and for models without finite ones."""
        try:
            distance, details = canonical_distance(truth.stolen, truth.true, truth.network)
        except Unsupported as reason:
            return Score(None, reason=f"this network's weights have no canonical form here: {reason}")
        except ZeroDivisionError:
            return Score(None, reason="the true model is zero")
        if not all(map(math.isfinite, (distance, *details.values()))):
            return Score(None, reason="a weight is not finite")
        return Score(distance, details=details)
