"""The distance of a stolen model's weights from the true ones, up to rescalings that keep a ReLU network's function."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import nn

from leakboard.core.errors import Unsupported
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.federation.payload import Parameters
from leakboard.metrics.base import ExtractionMetric, ExtractionTruth, Score


def canonical_distance(stolen: Parameters, true: Parameters, network: nn.Module) -> tuple[float, dict[str, float]]:
    """Relative L2 distance between the canonical forms of two models, in total and per tensor.

    d = || C(stolen) - C(true) || / || C(true) ||

    0 for every positive rescaling of the true model; the order of hidden units matters (none of our defenses hides it).

    Shapes: both models have the network's own shapes and are finite.
    Definition: SCHEMES 7(d); the symmetry is that of Neyshabur et al. 2015.

    >>> import torch
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
    """Relative distance of the stolen weights from the true ones, without positive rescaling of hidden units.

    Definition: `metrics.canonical_distance.canonical_distance`; the details give it per tensor.
    """

    name: ClassVar[str] = "canonical_distance"
    title: ClassVar[str] = "distance of weights"
    digits: ClassVar[int] = 4
    hint: ClassVar[str] = "relative, up to the symmetry of ReLUs"
    citation: ClassVar[str] = "Neyshabur et al., Path-SGD: Path-Normalized Optimization (...), NeurIPS 2015"
    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def score(self, truth: ExtractionTruth) -> Score:
        """The distance; None for networks without a canonical form and for models that are not finite."""
        try:
            distance, details = canonical_distance(truth.stolen, truth.true, truth.network)
        except Unsupported as reason:
            return Score(None, reason=f"this network's weights have no canonical form here: {reason}")
        except ZeroDivisionError:
            return Score(None, reason="the true model is zero")
        if not all(map(math.isfinite, (distance, *details.values()))):
            return Score(None, reason="a weight is not finite")
        return Score(distance, details=details)
