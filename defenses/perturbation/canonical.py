"""A canonical form of ReLU networks, whose function does not change under positive rescaling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakboard.defenses.perturbation.wiring import Weight, Wiring, wiring_of
from leakboard.federation.payload import Parameters


def canonical_form(model: Parameters, network: nn.Module) -> Parameters:
    """The member of a model's rescaling class whose hidden units have incoming weights of unit norm.

    relu(c z) = c relu(z) for c > 0, so a hidden unit's incoming row can be divided by any n > 0 if the weights that
    read the unit are multiplied by n. From the first layer to the last, n is the norm of the row after the previous
    layers were rescaled (its bias included; both branches of a residual sum together). A unit behind an identity
    shortcut must keep the scale of the unit at the start of the shortcut. A row of zeros keeps its scale.

    Shapes: those of the model; returns float64. `Unsupported` names the first layer (such as batch norm) without one.
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
    """The norm (channels,) of everything that feeds each unit of an activation; 1 for a unit that nothing feeds."""
    feeds = [_read(model, weight, norms).values() for weight in wiring.weights if weight.target == relu]
    squares = [value.flatten(1).square().sum(1) if value.ndim > 1 else value.square() for f in feeds for value in f]
    norm = torch.stack(squares).sum(0).sqrt()
    return torch.where(norm > 0, norm, torch.ones_like(norm))


def _read(model: Parameters, weight: Weight, norms: dict[int, Tensor]) -> Parameters:
    """A layer's weight, with the scale of the units that it reads multiplied into its columns, and its bias."""
    value = model[f"{weight.name}.weight"].double()
    if weight.source is not None:
        columns = norms[weight.source].repeat_interleave(weight.repeat)
        value = value * columns.view(1, -1, *([1] * (value.ndim - 2)))
    biases = {f"{weight.name}.bias": model[f"{weight.name}.bias"].double()} if weight.has_bias else {}
    return {f"{weight.name}.weight": value, **biases}


def _as_rows(norm: Tensor, value: Tensor) -> Tensor:
    return norm.view(-1, *([1] * (value.ndim - 1)))
