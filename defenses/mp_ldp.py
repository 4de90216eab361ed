"""The paper's scheme without its pairwise noise, to show what DDP_Client contributes."""

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
    """mp-dp without pairwise noise: each client adds all the noise that its own gradient needs.

    eta ~ DN(sigma, 1) with sigma = S / mu(epsilon), in mode `paper` S / sqrt(theta(epsilon)): about sqrt(K) times the
    noise in the aggregate of mp-dp for the same epsilon. LeakBoard's own ablation, to measure the value of pairwise
    noise.
    """

    name: ClassVar[str] = "mp-ldp"
    citation: ClassVar[str] = "Definition: mp-dp with neighbours removed (ablation of Yang et al.)"
    claim: ClassVar[str] = "As mp-dp, with local noise only."

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: add DN(sigma, 1) to every value of the perturbed gradient."""
        with me.phase("DP"):
            sigma = self.unit_sigma(me.public) * self.size(me.context.batch_size)
            return added(gradient, signed_dn(me.stream("eta"), sigma, sum(v.numel() for v in gradient.values())))

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """R times a uniform variable of variance 2 sigma^2 / 3."""
        sigma = self.unit_sigma(public) * self.size(observation.context.batch_size)
        return self.local_noise(observation, public, math.sqrt(2 / 3) * sigma, math.sqrt(2) * sigma)

    def deviate(self) -> Self:
        """A server that draws a small R for one layer, which shrinks the noise on that layer (`skewed`)."""
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
