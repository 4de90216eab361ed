"""The paper's scheme without its pairwise noise: what DDP_Client brings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from leakboard.defenses.base import Noise
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.building_blocks.vectors import added
from leakboard.defenses.mp_dp import NOT_PRIVATE
from leakboard.defenses.noise.budget import LocalBudget
from leakboard.defenses.noise.laws import signed_dn
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.transcript import Observation


class MpLdp(LocalBudget, ModelPerturbation):
    """mp-dp without pairwise noise: every client adds all the noise that its gradient needs by itself.

    eta ~ DN(sigma, 1) with sigma = S / mu(epsilon), in mode `paper` S / sqrt(theta(epsilon)): about sqrt(K) times what
    the aggregate of mp-dp carries for the same epsilon. Ours, to show what the pairwise noise is worth.
    """

    name: ClassVar[str] = "mp-ldp"
    citation: ClassVar[str] = "Definition: mp-dp with neighbours removed (ablation of Yang et al.)"
    claim: ClassVar[str] = "As mp-dp, with local noise alone."

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: add DN(sigma, 1) to every value of the perturbed gradient."""
        with me.phase("DP"):
            sigma = self.unit_sigma(me.public) * self.size(me.context.batch_size)
            return added(gradient, signed_dn(me.stream("eta"), sigma, sum(v.numel() for v in gradient.values())))

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """R times a uniform of variance 2 sigma^2 / 3."""
        sigma = self.unit_sigma(public) * self.size(observation.context.batch_size)
        return self.local_noise(observation, public, math.sqrt(2 / 3) * sigma, math.sqrt(2) * sigma)

    def deviate(self) -> Self:
        """A server that draws a small R for one layer: the noise on it shrinks alike (`skewed`)."""
        return self.skewed_server()

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed and the composed epsilon, and why neither holds."""
        unit = self.unit_sigma(public)
        sigma = unit * self.size(public.training.batch_size)
        return {
            **self.budget_claims(public, 1 / unit),
            "sigma_eta": sigma,
            "mode": self.mode,
            "dp_holds": False,
            "reason": NOT_PRIVATE,
        }
