"""Local noise that relies on other honest clients: what tp-smc and hybridalpha encrypt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from leakboard.defenses.base import Noise, even_noise
from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.building_blocks.summed_codes import SharedNoise, SummedGradient, encoded
from leakboard.defenses.building_blocks.vectors import flat
from leakboard.defenses.crypto.fixed_point import FixedPoint, Floats, Integers
from leakboard.defenses.noise.calibration import composed_epsilon, gaussian_epsilon
from leakboard.federation.party import Party
from leakboard.federation.settings import Public
from leakboard.federation.transcript import Observation


class NoisyShare(SharedNoise, SummedGradient, Clipped):
    """A clipped gradient plus N(0, S^2 sigma^2 / (t - m)) with sigma = 1 / mu(epsilon, delta), in fixed point.

    t is the minimum number of honest clients and m (`spare`) the number that may be missing: the sum over all others
    carries at least S^2 sigma^2 even after K - t colluders subtracted their own noise. Codes represent values within
    +-(B + 6 standard deviations); larger values saturate.
    """

    code_bits: ClassVar[int]

    value_range: float = Field(8.0, gt=0, description="largest value of an update if clip is off")

    def codec(self, public: Public, batch: int) -> FixedPoint:
        """Fixed point for one client's noisy update on a batch of this size."""
        bound = self.clip if self.clip is not None else self.value_range
        return FixedPoint(self.code_bits, bound + 6 * self.share_sigma(public, batch))

    def share_sigma(self, public: Public, batch: int) -> float:
        """The standard deviation of one client's noise: S sigma / sqrt(t - m)."""
        return self.sigma(public, batch) / math.sqrt(self.certain_shares(public))

    def codes(self, me: Party) -> Integers:
        """Client: clip, add its share of the noise, quantise."""
        gradient = flat(self.clipped_gradient(me))
        batch = me.context.batch_size
        with me.phase("DP"):
            gradient = gradient + self.share_sigma(me.public, batch) * self.unit_noise(me, len(gradient))
        return encoded(me, self.codec(me.public, batch), gradient)

    def unit_noise(self, me: Party, count: int) -> Floats:
        """Client: `count` values of noise of deviation 1."""
        return me.stream("gaussian").normal(count)

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """One share of the noise on a decrypted update, and the mean of the shares on a mean."""
        share = self.share_sigma(public, observation.context.batch_size)
        gradients = self.read(observation, public).gradients if self.noise else {}
        return {name: even_noise(g.values, share / math.sqrt(g.clients)) for name, g in gradients.items()}

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed epsilon (K - t colluders), and what the noise guarantees against each threat in a round."""
        batch, senders = public.training.batch_size, self.fewest_senders(public)
        if not self.noise:
            return self.base_claims(public, math.inf)
        share = self.share_sigma(public, batch)
        found = self.base_claims(public, self.shift(public, batch) / (share * math.sqrt(self.certain_shares(public))))
        found |= {"sigma_share": share, "honest_clients": self.least_honest(public), **self.holds()}
        if self.clip is not None:
            shares = {"server": senders, "client": senders - 1, "server+keys": 1}
            mus = {threat: self.shift(public, batch) / (share * math.sqrt(count)) for threat, count in shares.items()}
            found["epsilon_round_by_threat"] = {t: gaussian_epsilon(mu, self.delta) for t, mu in mus.items()}
            times = self.compositions(public)
            found["epsilon_total_by_threat"] = {t: composed_epsilon(mu, times, self.delta) for t, mu in mus.items()}
        return found
