"""The paper's second ablation: exact recovery, then central noise."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.building_blocks.vectors import added
from leakboard.defenses.noise.budget import MODE, Budget, Mode
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public


class MpCdp(Budget, ModelPerturbation):
    """MP-CDP: model perturbation with exact recovery, then the server adds Gaussian noise to the aggregate.

    sigma = (S / K) / mu(epsilon, delta), the analytic Gaussian mechanism (Balle and Wang 2018). Mode `paper`:
    (S / K) sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and Roth 2014), which is proved only for epsilon <= 1.
    The server is trusted: it sees every client's exact gradient.
    """

    name: ClassVar[str] = "mp-cdp"
    citation: ClassVar[str] = "Yang et al., Secure Model Training and Secure Aggregation (...), ablation MP-CDP"
    claim: ClassVar[str] = "The trained model is differentially private; the server is trusted with every gradient."
    transitional: ClassVar[bool] = False

    mode: Mode = MODE

    def finish(self, me: Party, recovered: Parameters, clients: int) -> Parameters:
        """Server: add central noise to the recovered mean over the clients that sent an update."""
        with me.phase("DP"):
            sigma = self.central_sigma(me.public, clients, me.context.batch_size)
            return added(recovered, sigma * me.stream("central").normal(sum(v.numel() for v in recovered.values())))

    def central_sigma(self, public: Public, clients: int, batch: int) -> float:
        """Standard deviation of the noise on the mean over clients."""
        if self.mode == "paper":
            return self.size(batch) / clients * math.sqrt(2 * math.log(1.25 / self.delta)) / self.round_epsilon(public)
        return self.size(batch) / clients / self.round_mu(public)

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed and the composed epsilon of the published model; the server's view is not protected."""
        clients, batch = public.training.per_round, public.training.batch_size
        sigma = self.central_sigma(public, clients, batch)
        reason = "holds for the published models only if the server is trusted; it sees every exact gradient"
        found = self.budget_claims(public, self.size(batch) / clients / sigma)
        return {
            **found,
            "mode": self.mode,
            "sigma_central": sigma,
            "dp_holds": False,
            "reason": reason,
            "epsilon_against": ["client"],
        }
