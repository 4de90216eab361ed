"""The paper's first ablation: Gaussian noise on the original model perturbation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from leakboard.defenses.base import Noise
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.building_blocks.vectors import added
from leakboard.defenses.noise.budget import LocalBudget
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.transcript import Observation


class MpDpNaive(LocalBudget, ModelPerturbation):
    """MP-DP-Naive: original model perturbation (no transitional layers), Gaussian noise on the perturbed gradient.

    What the server recovers carries R * eta with R = r_i / r_j. This is heavy-tailed, because r ~ U(0, 1] has
    E[1/r^2] of about 1e5 (with the official floor of 1e-5). The paper includes it to show that.
    """

    name: ClassVar[str] = "mp-dp-naive"
    citation: ClassVar[str] = "Yang et al., Secure Model Training and Secure Aggregation (...), ablation MP-DP-Naive"
    claim: ClassVar[str] = "None: the paper shows that it does not work."
    transitional: ClassVar[bool] = False

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: add N(0, sigma^2) to every value of the perturbed gradient."""
        with me.phase("DP"):
            sigma = self.unit_sigma(me.public) * self.size(me.context.batch_size)
            return added(gradient, sigma * me.stream("eta").normal(sum(v.numel() for v in gradient.values())))

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """R times a normal variable of deviation sigma."""
        sigma = self.unit_sigma(public) * self.size(observation.context.batch_size)
        return self.local_noise(observation, public, sigma)

    def deviate(self) -> Self:
        """A server that draws a small R for one layer, which shrinks the noise on that layer (`skewed`)."""
        return self.skewed_server()

    def claims(self, public: Public) -> dict[str, Any]:
        """The budget that the noise would give an unperturbed gradient, and why it does not hold."""
        unit = self.unit_sigma(public)
        sigma = unit * self.size(public.training.batch_size)
        reason = "Psi and Phi are sent without noise; the noise is divided by the server's own factors"
        return {
            **self.budget_claims(public, 1 / unit),
            "sigma_eta": sigma,
            "mode": self.mode,
            "dp_holds": False,
            "reason": reason,
        }
