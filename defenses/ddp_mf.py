"""Shared noise that is correlated over rounds, under secure aggregation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from leakboard.core.errors import UserError
from leakboard.defenses.base import Noise, even_noise
from leakboard.defenses.building_blocks.correlated_rounds import CorrelatedRounds
from leakboard.defenses.crypto.fixed_point import FixedPoint, Floats
from leakboard.defenses.ddp import Ddp
from leakboard.defenses.noise.calibration import gaussian_epsilon
from leakboard.defenses.noise.correlated import deviations
from leakboard.federation.party import Party
from leakboard.federation.settings import Public
from leakboard.federation.transcript import Observation


class DdpMf(CorrelatedRounds, Ddp):
    """ddp whose noise partly cancels from round to round: mf without a trusted server.

    Each client keeps its own past noise and adds S sens(C) / (mu sqrt(t - 1)) (C^{-1} z)_t to its clipped gradient. The
    same t - 1 honest clients must be present in all rounds, because noise that cancels must come from who added it. So
    all clients take part in every round, and only one of them may ever drop out before it sends its update. No round
    is then lost before the others draw their noise: sens(C) counts rounds in which noise is drawn.
    """

    name: ClassVar[str] = "ddp-mf"
    citation: ClassVar[str] = (
        "LeakBoard: the banded square root of Kalinin and Lampert, NeurIPS 2024, in shares under secure aggregation"
    )
    claim: ClassVar[str] = (
        "The server learns only sums, whose whole sequence is (epsilon, delta)-DP; clients see the model."
    )

    def check(self, public: Public) -> None:
        """Who adds noise must be there to take it back."""
        super().check(public)
        training = public.training
        if self.spare != 1:
            raise UserError(f"The defense '{self.name}' has shares for one missing client; given: spare {self.spare}.")
        if training.per_round < training.clients:
            raise UserError(
                f"The defense '{self.name}' needs all {training.clients} clients in every round, because only a client "
                f"that added noise can take it back; given: participants {training.per_round}."
            )
        if training.misses_at_random:
            raise UserError(
                f"The defense '{self.name}' needs the same clients in every round, because only a client that added "
                f"noise can take it back; given: dropout {training.dropout:g}, late {training.late:g}."
            )
        gone = set[int]().union(*self.missing_before_update(public).values())
        if len(gone) > 1:
            raise UserError(f"The defense '{self.name}' lets one client drop out at most; given: {len(gone)}.")
        if gone and not self.enough(public, training.per_round - 1):
            raise UserError(
                f"The defense '{self.name}' lets no client drop out where it takes all {training.per_round} to open a "
                f"sum, because a lost round would add no noise; given: client {min(gone)} drops out."
            )

    def codec(self, public: Public, batch: int) -> FixedPoint:
        """Fixed point for the largest noise of any round, and of the probes after the last one."""
        bound = self.clip if self.clip is not None else self.value_range
        most = float(self._deviations(public)[-1])
        return FixedPoint(self.code_bits, bound + 6 * most * self.share_sigma(public, batch))

    def _deviations(self, public: Public) -> Floats:
        """The deviation of n_t in each round, and in one more."""
        return deviations(self.coefficients(public), public.total_rounds + 1)

    def unit_noise(self, me: Party, count: int) -> Floats:
        """Client: the next of its own correlated noises."""
        return self.next_noise(me, "gaussian", count)

    def mean_sigma(self, public: Public, batch: int) -> float:
        """The shares of K clients in their mean; after a dropout there are fewer, which no attack models."""
        return self.share_sigma(public, batch) / math.sqrt(public.training.per_round)

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """The noise of this round by itself; what former rounds tell about it is not used.

        Probes run after the training step of their round, so their noise is that of the next one.
        """
        if not self.noise:
            return {}
        context = observation.context
        index = context.round + (1 if context.kind == "probe" else 0)
        share = self.share_sigma(public, context.batch_size) * float(self._deviations(public)[index])
        gradients = self.read(observation, public).gradients
        return {name: even_noise(g.values, share / math.sqrt(g.clients)) for name, g in gradients.items()}

    def claims(self, public: Public) -> dict[str, Any]:
        """The exact epsilon of the run against K - t colluders, and of what each threat sees."""
        found = super().claims(public)
        if not self.noise or self.clip is None:
            return found
        senders = self.fewest_senders(public)  # the noise of one that was ever missing cancels no longer
        shares = {"server": senders, "client": senders - 1}
        shares["server+keys"] = shares["server"]
        honest, mu = self.certain_shares(public), self.run_mu(public)
        by_threat = {name: gaussian_epsilon(mu * math.sqrt(honest / n), self.delta) for name, n in shares.items()}
        return found | self.run_claims(public) | {"epsilon_total_by_threat": by_threat}
