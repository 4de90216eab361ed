"""Gaussian noise that partly cancels from round to round: what mf and ddp-mf share."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.noise.calibration import gaussian_epsilon
from leakboard.defenses.noise.correlated import (
    Floats,
    accumulated,
    inverted,
    sensitivity,
    sensitivity_in_every_round,
    square_root,
)
from leakboard.federation.party import Party
from leakboard.federation.settings import Public


class CorrelatedRounds(Clipped):
    """Noise of a whole run as one Gaussian mechanism: S sens(C) / mu (C^{-1} z)_t in round t, z independent.

        n_t = z_t - sum_{i=1}^{b-1} c_i n_{t-i}

    c is the band of `noise.correlated`. A band of 1 is independent noise. `epsilon_per: round` spends over the run what
    independent noise would spend; each round alone then costs less.
    """

    band: int = Field(8, ge=1, le=1000, description="rounds over which noise is correlated; 1: independent noise")

    def coefficients(self, public: Public) -> Floats:
        """c: at most one for each round of an epoch, beyond which a record's uses would overlap further."""
        epoch = public.total_rounds if self.sensitivity == "client" else self._epoch(public)
        return square_root(min(self.band, epoch, public.total_rounds), public.training.momentum)

    def _epoch(self, public: Public) -> int:
        return max(1, min(public.shard_sizes) // public.training.batch_size)

    def moves(self, public: Public) -> float:
        """sens(C): how far one neighbour moves C x, in units of S."""
        band, rounds = self.coefficients(public), public.total_rounds
        if self.sensitivity == "client":
            return sensitivity_in_every_round(band, rounds)
        return sensitivity(band, rounds, self.compositions(public), self._epoch(public))

    def run_mu(self, public: Public) -> float:
        """The mean shift of the whole run, as independent noise would have it."""
        return self.round_mu(public) * math.sqrt(self.compositions(public))

    def sigma(self, public: Public, batch: int) -> float:
        """The noise of z: S sens(C) / mu; 0 if noise is off."""
        return self.size(batch) * self.moves(public) / self.run_mu(public) if self.noise else 0.0

    def next_noise(self, me: Party, purpose: str, size: int) -> Floats:
        """n_t for unit noise, from this party's stream; its last b - 1 are kept in float32, as they were used."""
        band = self.coefficients(me.public)
        before: list[Tensor] = me.state.get("noise", [])
        drawn = torch.from_numpy(me.stream(purpose).normal(size))
        for coefficient, past in zip(band[1:], before, strict=False):
            drawn = drawn - coefficient * past.double()
        me.state["noise"] = [drawn.float(), *before][: len(band) - 1]
        found: Floats = drawn.float().double().numpy()
        return found

    def noise_over_rounds(self, public: Public, batch: int) -> Tensor | None:
        """C^{-1} times the noise of the mean: that of z over the number of clients."""
        if not self.noise:
            return None
        inverse = torch.from_numpy(inverted(self.coefficients(public), public.total_rounds + 1))
        return inverse * self.mean_sigma(public, batch)

    def mean_sigma(self, public: Public, batch: int) -> float:
        """The noise of z on the mean over K clients; here that of one draw for their sum."""
        return self.sigma(public, batch) / public.training.per_round

    def run_claims(self, public: Public) -> dict[str, Any]:
        """The epsilon of the run, and that of its first round alone, which has the least noise.

        Both hold with at most these values: for records sens(C) is an upper bound.
        """
        band, rounds, momentum = self.coefficients(public), public.total_rounds, public.training.momentum
        times, moved = self.compositions(public), self.moves(public)
        independent = math.sqrt(times) * accumulated(square_root(1), rounds, momentum)
        return {
            "epsilon_round_exact": gaussian_epsilon(self.run_mu(public) / moved, self.delta),
            "epsilon_run_exact": gaussian_epsilon(self.run_mu(public), self.delta),
            "band": len(band),
            "sensitivity_of_band": moved,
            "final_noise_over_independent": moved * accumulated(band, rounds, momentum) / independent,
        }
