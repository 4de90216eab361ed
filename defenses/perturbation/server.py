"""MP_Server and MU_Server: draw the secret noise, perturb the model, recover a gradient.

Activation a of the true network becomes a / s in the perturbed one (after its transitional layer), and the sum before
it becomes r * z. So a weight from activation j to activation i is multiplied by R_ij = r_i s_j, and a bias by r_i. The
transitional layer after ReLU i is the diagonal 1 / (r_i s_i), and an identity shortcut becomes the diagonal r_out s_in
(decision 8.7). The last layer gets R_ij = s_j and, added to every column, r = gamma * r^a:

    y_hat = y + alpha r,   alpha = sum_j a_hat_j   (the perturbed penultimate activations)

Without transitional layers (the original scheme, Yang et al. 2022) s = 1 / r and shortcuts keep their r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leakboard.core.randomness import Stream
from leakboard.defenses.noise.laws import positive_dn
from leakboard.defenses.perturbation.wiring import Weight, Wiring
from leakboard.federation.payload import Parameters

#: smallest factor of the official code, which draws U(0, 1] + 1e-5
FLOOR = 1e-5


@dataclass(frozen=True)
class Secret:
    """The server's one-time noise: r and s by activation, gamma (one number or one per class) and r^a (classes,)."""

    r: tuple[Tensor, ...]
    s: tuple[Tensor, ...]
    gamma: Tensor
    direction: Tensor

    @property
    def additive(self) -> Tensor:
        """r = gamma * r^a (classes,), which is added to every column of the last layer."""
        return self.gamma * self.direction

    def factor(self, weight: Weight) -> tuple[Tensor | None, Tensor | None]:
        """The factors of a weight's rows (outputs) and columns (inputs); None if there is no factor."""
        rows = self.r[weight.target] if weight.target is not None else None
        columns = self.s[weight.source].repeat_interleave(weight.repeat) if weight.source is not None else None
        return rows, columns

    def matrix(self, weight: Weight, value: Tensor) -> Tensor:
        """R in the shape of a weight (outputs, inputs, ...), broadcast over kernel positions; float64."""
        rows, columns = self.factor(weight)
        found = torch.ones(value.shape[:2], dtype=torch.float64)
        if rows is not None:
            found = found * rows[:, None]
        if columns is not None:
            found = found * columns[None, :]
        return found.view(*found.shape, *([1] * (value.ndim - 2)))


def draw_secret(
    stream: Stream, wiring: Wiring, classes: int, *, transitional: bool, variant: str, scale: float, spread: float = 0.0
) -> Secret:
    """Fresh noise for one round.

    With transitional layers r and s follow DN* (equation 12 of the paper): DN*(1) if a weight has only one factor (next
    to the input and before the logits), DN*(2) elsewhere. Without them, r is U(0, 1] as in the official code, or, with
    a `spread`, spread^U(-1/2, 1/2): then every R is within [1 / spread, spread]. r^a is U(0, 1]. gamma is U(0, 1] times
    `scale`: one number in V2, one per class in V1.
    """
    first = {w.target for w in wiring.weights if w.source is None}
    final = {w.source for w in wiring.weights if w.target is None}
    r: list[Tensor] = []
    s: list[Tensor] = []
    for index, channels in enumerate(wiring.channels):
        if transitional:
            r.append(torch.from_numpy(positive_dn(stream, 1 if index in first else 2, channels)))
            s.append(torch.from_numpy(positive_dn(stream, 1 if index in final else 2, channels)))
            continue
        kept = [skip.source for skip in wiring.skips if skip.target == index]
        drawn = stream.uniform(channels)
        fresh = spread ** (drawn - 0.5) if spread else drawn + FLOOR
        value = r[kept[0]] if kept else torch.from_numpy(fresh)
        r.append(value)
        s.append(1 / value)
    direction = torch.from_numpy(stream.uniform(classes) + FLOOR)
    gamma = torch.from_numpy(np.atleast_1d(stream.uniform(1 if variant == "V2" else classes)) + FLOOR) * scale
    return Secret(tuple(r), tuple(s), gamma, direction)


def skewed(secret: Secret, factor: float) -> Secret:
    """The secret of a server that deviates: every r is multiplied by `factor`, every s and gamma divided by it.

    R of the first layer, r_i, and with it the clients' noise on that layer, becomes `factor` times as large. R of the
    last layer, s_j, becomes smaller by the same factor. Those between, r_i s_j, do not change. Neither do the visible
    values of transitional layers (1 / (r s)) and shortcuts (r_out s_in), nor y_hat, because alpha grows as gamma
    shrinks.

    A client that checks sizes would notice: the first layer's W_hat is `factor` times as large too, and the last one's
    is smaller by the same factor. No R avoids that: <W_hat, grad_hat> of a layer does not depend on R, so noise shrinks
    relative to a layer's gradient only as its weights do. In the scheme, clients do not check this.
    """
    return Secret(
        tuple(r * factor for r in secret.r),
        tuple(s / factor for s in secret.s),
        secret.gamma / factor,
        secret.direction,
    )


def perturb(model: Parameters, wiring: Wiring, secret: Secret, *, transitional: bool, dtype: torch.dtype) -> Parameters:
    """W_hat: the model that clients train on, with the transitional diagonals added to the weights."""
    found: Parameters = {}
    for weight in wiring.weights:
        value = model[f"{weight.name}.weight"].double()
        hidden = secret.matrix(weight, value) * value
        if weight.target is None:
            hidden = hidden + secret.additive[:, None]
        found[f"{weight.name}.weight"] = hidden.to(dtype)
        if weight.has_bias:
            bias = model[f"{weight.name}.bias"].double()
            found[f"{weight.name}.bias"] = (bias * secret.r[weight.target] if weight.target is not None else bias).to(
                dtype
            )
    if transitional:
        for index, path in enumerate(wiring.relus):
            found[f"{path}.scale"] = (1 / (secret.r[index] * secret.s[index])).to(dtype)
        for skip in wiring.skips:
            found[f"{skip.path}.scale"] = (secret.r[skip.target] * secret.s[skip.source]).to(dtype)
    return found


def recover(gradient: Parameters, psi: Parameters, phi: Parameters, wiring: Wiring, secret: Secret) -> Parameters:
    """grad = R * (grad_hat - r^T Psi + v Phi), v = r^T r, in float64.

    Psi has the weight's shape (V2: the client contracted it with r^a, and gamma is one number) or one more leading
    dimension of classes (V1: the server contracts it with r).
    """
    v = secret.additive.square().sum()
    found: Parameters = {}
    for weight in wiring.weights:
        names = [f"{weight.name}.weight", *([f"{weight.name}.bias"] if weight.has_bias else [])]
        for name in names:
            g, q, p = gradient[name].double(), psi[name].double(), phi[name].double()
            contracted = secret.gamma * q if secret.gamma.numel() == 1 else torch.tensordot(secret.additive, q, dims=1)
            clean = g - contracted + v * p
            if name.endswith("bias"):
                found[name] = clean * secret.r[weight.target] if weight.target is not None else clean
            else:
                found[name] = secret.matrix(weight, g) * clean
    return found
