"""mp-dp+ without model perturbation: the honest ablation."""

from __future__ import annotations

from typing import Any, ClassVar

from leakboard.defenses.building_blocks.noisy_share import NoisyShare
from leakboard.defenses.building_blocks.secure_sum import SecureSum
from leakboard.federation.settings import Public


class Ddp(SecureSum, NoisyShare):
    """Distributed differential privacy: clipped gradients with a share of Gaussian noise, under secure aggregation.

    Each client adds N(0, S^2 sigma^2 / (t - 1)) to its clipped gradient, as in tp-smc, and masks it in fixed point, as
    in secagg. Compared with mp-dp+ there are no Psi and Phi that need noise too, and no R that multiplies it. Clients
    get the model in plain; mp-dp+ hides only its weights, not its function.
    """

    name: ClassVar[str] = "ddp"
    citation: ClassVar[str] = (
        "Goryczka and Xiong, A Comprehensive Comparison of Multiparty Secure Additions with Differential Privacy, "
        "IEEE TDSC 2017 (Gaussian shares; here the ablation of mp-dp+)"
    )
    claim: ClassVar[str] = "The server learns only an (epsilon, delta)-DP sum; clients see the model."
    code_bits: ClassVar[int] = 44

    def claims(self, public: Public) -> dict[str, Any]:
        """What the noise guarantees; without a dealer, `server+keys` holds no more than the server."""
        found = super().claims(public) | self.graph_claims(public)
        for name in ("epsilon_round_by_threat", "epsilon_total_by_threat"):
            if name in found:
                found[name] = found[name] | {"server+keys": found[name]["server"]}
        return found
