"""Phi and Psi of one record as a gradient to match: a known network, known targets, and no noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.perturbation.psi import Features, Settled, by_auxiliary, features_of, settle
from leakboard.defenses.base import Gradient
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.payload import Parameters


@dataclass(frozen=True)
class Matched:
    """A problem for the matcher: a network with some outputs, the gradient of its squared error, and the targets.

    `targets` is (B, outputs); `label` (1,) is that of the record.
    """

    problem: Inversion
    targets: Tensor
    label: Tensor


def record_problem(knowledge: Knowledge, parts: CleanParts) -> Matched:
    """Phi and Psi of one record, as one gradient.

    Once the label and the clipping factor k are known (`psi`), so are alpha, h and e. That gives the gradients of alpha
    itself (from Phi) and of y . d = (Psi_d / k - (e . d) grad alpha) / alpha. The network to match has the outputs
    alpha (target 0) and y . d (target onehot . d) for every direction d, all with last weights as long as the true
    ones. V2 has one d. V1 has every class, and with them the true gradient sum_c e_c grad y_c. That gradient alone
    tells little once the model has learned the record (e is small, and the image stays at the level of a guess:
    docs/adaptive.md).
    """
    features = features_of(parts)
    settled = settle(
        features.label,
        parts.directions,
        features.factor,
        by_auxiliary(knowledge.task, parts, features, knowledge.auxiliary),
    )
    unclipped = _Unclipped(parts, features, settled)
    rows, slopes = parts.directions @ parts.weight, unclipped.of_logits
    offsets, along = parts.directions @ parts.bias, parts.directions @ unclipped.residual
    lengths = torch.cat([_length(parts, parts.head)[None], _length(parts, rows).expand(len(rows))])
    weights = lengths[:, None] * torch.cat([parts.head[None], rows])
    biases = lengths * torch.cat([rows.new_zeros(1), offsets])
    errors = lengths * torch.cat([unclipped.alpha[None], along])
    both = {n: lengths.view(-1, *[1] * g.ndim) * torch.cat([g[None], slopes[n]]) for n, g in unclipped.of_alpha.items()}
    return unclipped.problem(weights, biases, errors, both)


class _Unclipped:
    """One record's alpha (), features h (features,), residual e (classes,), gradients of alpha and of y . d."""

    def __init__(self, parts: CleanParts, features: Features, settled: Settled) -> None:
        k = settled.factor
        self.parts, self.label = parts, settled.label.view(1)
        self.alpha, self.hidden = features.alpha / k.sqrt(), features.hidden / k.sqrt()
        onehot = torch.eye(len(parts.weight), dtype=torch.float64)[settled.label]
        self.residual = parts.weight @ self.hidden + parts.bias - onehot
        along = parts.directions @ self.residual
        self.of_alpha: Parameters = {n: g / (k * self.alpha) for n, g in parts.phi.items()}
        #: (D, *shape)
        self.of_logits: Parameters = {
            n: (g / k - along.view(-1, *[1] * (g.ndim - 1)) * self.of_alpha[n]) / self.alpha
            for n, g in parts.psi.items()
        }

    def problem(self, weights: Tensor, biases: Tensor, errors: Tensor, slopes: Parameters) -> Matched:
        """Outputs (N,) with these last weights and biases, errors and gradients (N, *shape) in the other layers."""
        gradient = {n: torch.tensordot(errors, g, dims=1) for n, g in slopes.items()}
        gradient[f"{self.parts.last}.weight"] = errors[:, None] * self.hidden
        if self.parts.offset is not None:
            gradient[f"{self.parts.last}.bias"] = errors
        model = self.parts.with_outputs(weights, biases)
        targets = weights @ self.hidden + biases - errors
        return Matched(Inversion(model, Gradient(gradient, 1, 1), None), targets[None], self.label)


def _length(parts: CleanParts, rows: Tensor) -> Tensor:
    """The factor that makes rows (..., features) of last weights as long, on average, as the true ones."""
    found: Tensor = parts.weight.norm(dim=1).mean() / rows.norm(dim=-1).mean().clamp(min=1e-300)
    return found
