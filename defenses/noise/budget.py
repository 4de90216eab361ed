"""The settings that every defense with differential privacy shares: one meaning of epsilon for all."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field

from leakboard.core.plugins import Settings
from leakboard.defenses.base import Gradient, Transform
from leakboard.defenses.noise.calibration import DELTA, composed_epsilon, gaussian_epsilon, gaussian_mu, local_sigma
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public


def clipping(bound: float) -> Transform:
    """Scale each of the gradients (N, *shape) by min(1, B / ||g||), with its own norm over all parameters."""

    def clipped(gradients: Parameters) -> Parameters:
        squares = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()])
        factors = (bound / squares.sum(0).sqrt().clamp(min=1e-12)).clamp(max=1.0)
        return {n: v * factors.view(-1, *([1] * (v.ndim - 1))) for n, v in gradients.items()}

    return clipped


Mode = Literal["corrected", "paper"]
#: the setting `mode` of the paper's scheme and its ablations: it changes the formula, never what epsilon covers
MODE: Mode = Field(
    "corrected",
    description="noise from epsilon: corrected (exact at every epsilon and graph) or the paper's own formula",
)


class Budget(Settings):
    """A privacy budget: epsilon and delta, what they cover, and what a neighbouring dataset is.

    `epsilon_per: round` grants epsilon to each round. `epsilon_per: run` grants it to the whole training: T Gaussian
    mechanisms of mean shift mu compose to one of sqrt(T) mu (Dong et al. 2022), so a round may have mu / sqrt(T).
    `sensitivity: record` clips each example's gradient to B and changes one record: S = 2B / batch for
    the mean. `sensitivity: client` lets the whole update change: S = B (docs/decisions.md, 9.1). With local steps no
    record has a gradient of its own: the whole update is clipped to B, one replaced record or all of them move it by at
    most S = 2B, and each round counts.
    """

    epsilon: float = Field(3.0, gt=0, le=1e9, description="privacy budget")
    epsilon_per: Literal["round", "run"] = Field("round", description="what epsilon covers: one round, or the training")
    delta: float = Field(DELTA, gt=0, lt=1)
    sensitivity: Literal["record", "client"] = Field("record", description="what one neighbour may change")
    clip: float | None = Field(1.0, gt=0, description="B, the L2 bound of an example's gradient")

    def size(self, batch: int) -> float:
        """S: how far the mean gradient of a batch can move between neighbours."""
        bound = self.clip if self.clip is not None else 1.0
        return 2 * bound / batch if self.sensitivity == "record" else bound

    def shift(self, public: Public, batch: int) -> float:
        """S: how far a client's message for a batch can move between neighbours, local steps included."""
        if public.training.is_local and self.sensitivity == "record":
            return 2 * (self.clip if self.clip is not None else 1.0)
        return self.size(batch)

    def compositions(self, public: Public) -> int:
        """How often one neighbour's data is used: epochs for a record, rounds for a client (docs/decisions.md, 9.4)."""
        if self.sensitivity == "client" or public.training.is_local:
            return public.total_rounds
        batches = max(1, min(public.shard_sizes) // public.training.batch_size)
        return math.ceil(public.total_rounds / batches)

    def round_mu(self, public: Public) -> float:
        """The mean shift that the budget allows a single Gaussian mechanism in one round."""
        times = self.compositions(public) if self.epsilon_per == "run" else 1
        return gaussian_mu(self.epsilon, self.delta) / math.sqrt(times)

    def round_epsilon(self, public: Public) -> float:
        """The epsilon of one round: epsilon itself, or the value that composes to it over the training."""
        return self.epsilon if self.epsilon_per == "round" else gaussian_epsilon(self.round_mu(public), self.delta)

    def mimic_records(self, observed: Gradient, public: Public) -> Transform | None:
        """Each record's gradient is scaled down to norm B."""
        return None if self.clip is None or public.training.is_local else clipping(self.clip)

    def holds(self) -> dict[str, Any]:
        """Whether the budget guarantees differential privacy, given that all noise is Gaussian."""
        if self.clip is None:
            return {"dp_holds": False, "reason": "clip is off: S has no bound"}
        if self.sensitivity == "client":
            return {"dp_holds": False, "reason": "S = B counts a missing client; two updates may differ by 2B"}
        return {"dp_holds": True}

    def budget_claims(self, public: Public, mu: float) -> dict[str, Any]:
        """For the record: the nominal epsilon, and the exact ones of a round and of the run if all noise were Gaussian.

        `mu` is the mean shift of one round, S / sigma for a single Gaussian. Both hold against the parties that the
        scheme itself considers. If single threats get other values, `epsilon_round_by_threat` lists them.
        """
        times = self.compositions(public)
        if self.clip is None:  # an unclipped gradient may move by any amount
            return {"epsilon_claimed": None, "delta": self.delta, "reason_unbounded": "clip is off: S has no bound"}
        found: dict[str, Any] = {
            "epsilon_claimed": self.epsilon,
            "epsilon_per": self.epsilon_per,
            "epsilon_round_claimed": self.round_epsilon(public),
            "epsilon_round_exact": gaussian_epsilon(mu, self.delta),
            "epsilon_run_exact": composed_epsilon(mu, times, self.delta),
            "delta": self.delta,
            "sensitivity": self.sensitivity,
            "S_batch": self.shift(public, public.training.batch_size),
            "compositions": times,
        }
        if public.training.is_local:
            found["unit"] = "client: the update of all local steps is clipped as one vector"
            if self.sensitivity == "record":
                del found["sensitivity"]  # S = 2B covers all records of a client
        return found


class LocalBudget(Budget):
    """The budget of ablations in which each client adds all of its noise itself."""

    mode: Mode = MODE

    def unit_sigma(self, public: Public) -> float:
        """The noise for S = 1. corrected: 1 / mu, exact; paper: Gopa's condition, 1 / sqrt(theta)."""
        if self.mode == "paper":
            return local_sigma(self.round_epsilon(public), self.delta)
        return 1 / self.round_mu(public)
