"""The norms of the true gradients, from what a client computes on the perturbed model and the server's secret.

For every example, as for a batch, grad = R * (grad_hat - r^T Psi + v Phi) (`server.recover`). A gradient is linear in
the signal at its layer, so one mixed signal per layer is enough. Only the oracle may combine the two parties' knowledge
like this (docs/decisions.md, 9.2). The norms have the rounding of the recovery: that of float32 in its largest term.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakboard.defenses.perturbation.client import Expanded, scales
from leakboard.defenses.perturbation.server import Secret
from leakboard.federation.example_passes import Pass
from leakboard.federation.payload import Parameters


def true_norms(made: Pass, expanded: Expanded, perturbed: Parameters, secret: Secret) -> Tensor:
    """L2 norms (B,) of the examples' true gradients, from a pass over the client's plain network.

    The secret and the perturbed model are on the CPU. `mixed_squares` takes the factors to the device of the pass.
    """
    with torch.device("cpu"):
        return _true_norms(made, expanded, perturbed, secret)


def _true_norms(made: Pass, expanded: Expanded, perturbed: Parameters, secret: Secret) -> Tensor:
    carried, summed = scales(perturbed, expanded)
    along = secret.gamma if secret.gamma.numel() == 1 else secret.additive
    mix = [1.0, *(-float(value) for value in along.flatten()), float(secret.additive.square().sum())]
    squares = []
    for weight in expanded.wiring.weights:
        # R = r_i s_j, and the factors that the client's plain network has besides
        outputs = inputs = torch.ones(1)
        if weight.target is not None:
            outputs = secret.r[weight.target] / summed[weight.target]
        if weight.source is not None:
            inputs = (secret.s[weight.source] * carried[weight.source]).repeat_interleave(weight.repeat)
        squares.append(made.layers[weight.name].mixed_squares(mix, outputs, inputs))
    return torch.stack(squares).sum(0).clamp(min=0).sqrt()
