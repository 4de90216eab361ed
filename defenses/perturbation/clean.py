"""Psi and Phi in the true model's own coordinates, as a server that knows R and r computes them.

With W_hat = R * W (and r added to the last layer) a gradient with respect to W is R times the one with respect to
W_hat. The activation a_hat = a / s of the perturbed network makes alpha = sum_j h_j / s_j = q . h, with h (features,)
the true penultimate activations: alpha is an additional output of the true network, and the server drew its row q of
last weights. With e = y - y_bar, r = gamma r^a and y_hat = y + alpha r,

    R Phi                        = grad_W mean 1/2 alpha^2          (zero in the last layer, which alpha does not use)
    R (Psi_d - 2 (r . d) Phi)    = grad_W mean alpha (e . d)        for the direction d: r^a in V2, each class in V1
    s_j Psi_d in the last layer   = d (mean alpha h)^T, in its bias Psi_d = d (mean alpha)

None of them contains any noise of the scheme.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.defenses.perturbation.server import Secret
from leakboard.defenses.perturbation.wiring import Wiring
from leakboard.federation.payload import Parameters


@dataclass(frozen=True)
class CleanParts:
    """One client's Phi and Psi on the true `model`, in float64; means over `records` clipped records.

    `head` (features,) is q. `phi` is the gradient of mean 1/2 alpha^2 with respect to all layers except the last.
    `features` (features,) is mean alpha h, its gradient with respect to q. `offset` (1,) is mean alpha if the last
    layer has a bias, otherwise None. `psi` (D, *shape) are the gradients of mean alpha (e . d) for the D rows d of
    `directions` (D, classes), with respect to all layers except the last. `inputs` names the weights that read the
    images, `last` the last layer. `clip` is the bound B of a record's gradient, None if nothing was clipped.
    """

    model: Parameters
    inputs: tuple[str, ...]
    last: str
    head: Tensor
    phi: Parameters
    features: Tensor
    offset: Tensor | None
    psi: Parameters
    directions: Tensor
    records: int
    clip: float | None

    def with_outputs(self, weight: Tensor, bias: Tensor | None = None) -> Parameters:
        """The true network with other last weights (N, features) and biases (N,), which are zero by default."""
        found = {**self.model, f"{self.last}.weight": weight}
        if self.offset is not None:
            found[f"{self.last}.bias"] = weight.new_zeros(len(weight)) if bias is None else bias
        return found

    @property
    def weight(self) -> Tensor:
        """The true last weights (classes, features)."""
        return self.model[f"{self.last}.weight"]

    @property
    def bias(self) -> Tensor:
        """The true last biases (classes,); zero if there are none."""
        return self.model.get(f"{self.last}.bias", self.weight.new_zeros(len(self.weight)))


def clean_parts(
    psi: Parameters,
    phi: Parameters,
    model: Parameters,
    wiring: Wiring,
    secret: Secret,
    *,
    records: int,
    clip: float | None,
) -> CleanParts:
    """Divide R and r out of one client's message; `model` is the true model that the server perturbed."""
    last, classes = wiring.last, len(secret.direction)
    assert last.source is not None
    stacked = psi[f"{last.name}.weight"].ndim == 3  # V1
    directions = torch.eye(classes, dtype=torch.float64) if stacked else secret.direction.double()[None]
    shift = 2 * directions @ secret.additive.double()
    own: Parameters = {}
    mixed: Parameters = {}
    for weight in wiring.weights:
        if weight is last:
            continue
        for name in (f"{weight.name}.weight", *([f"{weight.name}.bias"] if weight.has_bias else [])):
            p = phi[name].double()
            q = psi[name].double().reshape(len(directions), *p.shape)
            assert weight.target is not None
            factor = secret.r[weight.target] if name.endswith("bias") else secret.matrix(weight, p)
            own[name] = factor * p
            mixed[name] = factor * (q - shift.view(-1, *[1] * p.ndim) * p)
    head = (1 / secret.s[last.source].double()).repeat_interleave(last.repeat)
    return CleanParts(
        {name: value.double() if value.is_floating_point() else value for name, value in model.items()},
        tuple(f"{weight.name}.weight" for weight in wiring.weights if weight.source is None),
        last.name,
        head,
        own,
        _contracted(psi[f"{last.name}.weight"], directions) / head,
        _contracted(psi[f"{last.name}.bias"], directions) if last.has_bias else None,
        mixed,
        directions,
        records,
        clip,
    )


def _contracted(value: Tensor, directions: Tensor) -> Tensor:
    """m (n,) of the last layer's Psi_d = d m^T, from all of its rows."""
    rows = value.double().reshape(*directions.shape, -1)
    return torch.einsum("dc,dcn->n", directions, rows) / directions.square().sum()
