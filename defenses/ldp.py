"""Local differential privacy: each client adds noise to its own update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from leakboard.defenses.base import Noise, even_noise
from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.building_blocks.vectors import added_in_place_of
from leakboard.federation.party import Party
from leakboard.federation.settings import Public
from leakboard.federation.transcript import Observation


class Ldp(Clipped):
    """DP-SGD at each client: per-example clipping, then independent Gaussian noise on the mean gradient.

    sigma = S / mu(epsilon, delta) on every coordinate (analytic Gaussian mechanism), with S = 2B / batch for one
    replaced record. The mean over K clients carries variance sigma^2 / K. With local steps each client's whole update
    is clipped and S = 2B: the budget then covers all records of the client.
    """

    name: ClassVar[str] = "ldp"
    citation: ClassVar[str] = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016 (at each client)"
    takes_local_steps: ClassVar[bool] = True
    claim: ClassVar[str] = "Everything that leaves a client is (epsilon, delta)-differentially private, round by round."

    def update(self, me: Party) -> None:
        """Client: clip, add noise, send."""
        gradient = self.clipped_gradient(me)
        with me.phase("DP"):
            size = sum(value.numel() for value in gradient.values())
            noise = self.sigma(me.public, me.context.batch_size) * me.stream("gaussian").normal(size)
            noisy = added_in_place_of(gradient, noise)
        self.send_update(me, noisy)

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """The same deviation for every value."""
        sigma = self.sigma(public, observation.context.batch_size)
        gradients = self.read(observation, public).gradients
        return {n: even_noise(g.values, sigma) for n, g in gradients.items()} if self.noise else {}

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed and the composed epsilon: both hold against every threat."""
        batch = public.training.batch_size
        found = self.base_claims(
            public, self.shift(public, batch) / self.sigma(public, batch) if self.noise else math.inf
        )
        if self.noise:
            found |= {"sigma_local": self.sigma(public, batch), **self.holds()}
        return found
