"""The paper's baseline PILE."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from leakboard.defenses.building_blocks.perturbed_parts import PARTS, PerturbedParts
from leakboard.defenses.building_blocks.threshold_sum import ThresholdSum
from leakboard.defenses.crypto.fixed_point import FixedPoint
from leakboard.federation.settings import Public


class Pile(ThresholdSum, PerturbedParts):
    """PILE (our reconstruction): model perturbation, then threshold encryption of (gradient, Psi, Phi); no noise.

    The server learns only the sums of gradient, Psi and Phi, and recovers the exact mean gradient from them. Clients
    see the perturbed model. In the published scheme clients also prove to the server, in zero knowledge, that they
    computed correctly. Here all parties follow the protocol, and there are no proofs. Codes have 40 bits.
    """

    name: ClassVar[str] = "pile"
    citation: ClassVar[str] = (
        "Tang et al., PILE: Robust Privacy-Preserving Federated Learning via Verifiable Perturbations, TDSC 2023 "
        "(our reconstruction)"
    )
    claim: ClassVar[str] = "The server learns only the exact sum, and clients learn nothing about the model."
    transitional: ClassVar[bool] = False
    code_bits: ClassVar[int] = 40

    # measured in training (a convnet with 1,024 last features): gradients up to 2e2, Psi up to 4e4, Phi up to 5e5; some
    # probes of single records exceeded 2^20
    range_gradient: float = Field(2.0**13, gt=0, description="largest value of a gradient; larger ones saturate")
    range_psi: float = Field(2.0**19, gt=0, description="largest value of Psi; larger ones saturate")
    range_phi: float = Field(2.0**23, gt=0, description="largest value of Phi; larger ones saturate")

    def codecs(self, public: Public, batch: int) -> dict[str, FixedPoint]:
        """One range per part: gamma gives the lost precision of Phi and Psi little weight in the recovery."""
        ranges = (self.range_gradient, self.range_psi, self.range_phi)
        return {part: FixedPoint(self.code_bits, bound) for part, bound in zip(PARTS, ranges, strict=True)}

    def claims(self, public: Public) -> dict[str, Any]:
        """No noise, so no epsilon; the sizes of the cryptography."""
        return {
            "dp_holds": False,
            "reason": "the scheme adds no noise: the server learns the exact sum",
            "clients_to_decrypt": self.needed(public),
            "key_bits": self.key_bits,
            "crypto": self.crypto,
        }
