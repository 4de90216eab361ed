"""What an honest holder of a view reads from it: the model that was trained on, and gradients by owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters

#: the owner of a mean over all participants
AGGREGATE = "aggregate"


@dataclass(frozen=True)
class Gradient:
    """A gradient that a view lets its holders compute, or the update w_t - w_(t+1) where clients take local steps.

    `clients` is 1 for an individual one and K for the mean over K clients; `records` is how many
    records it averages over in all.
    """

    values: Parameters
    clients: int
    records: int


@dataclass(frozen=True)
class Reading:
    """The honest reading of one observation: the model that was trained on, and gradients by owner.

    Owners are client names; the mean over all participants stands under `AGGREGATE`. `statistics` are the buffers of a
    network with batch norm after training, by owner, where the view holds them.
    """

    context: RoundContext
    model: Parameters | None
    gradients: Mapping[str, Gradient]
    statistics: Mapping[str, Parameters] = field(default_factory=dict)
