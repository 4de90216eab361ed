"""The paper's baseline PILE."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from defenses._perturbed_parts import PARTS, PerturbedParts
from defenses._threshold_sum import ThresholdSum
from defenses.crypto.fixed_point import FixedPoint
from federation.settings import Public


class Pile(ThresholdSum, PerturbedParts):
    """PILE (our reconstruction): model perturbation, then threshold encryption of (gradient, Psi, Phi); no noise.

    The server learns the sums of gradient, Psi and Phi alone, and recovers the exact mean gradient from them;
    clients see the perturbed model. The published scheme also proves to the server, in zero knowledge, that
    clients computed correctly; here everybody follows the protocol, and there are no proofs. Codes have 36 bits.
    """

    name: ClassVar[str] = "pile"
    citation: ClassVar[str] = (
        "Tang et al., PILE: Robust Privacy-Preserving Federated Learning via Verifiable Perturbations, TDSC 2023 "
        "(our reconstruction)"
    )
    claim: ClassVar[str] = "The server learns the exact sum alone, and clients learn nothing of the model."
    transitional: ClassVar[bool] = False
    code_bits: ClassVar[int] = 36

    value_range: float = Field(1024.0, gt=0, description="largest value of gradient, Psi and Phi; others saturate")

    def codecs(self, public: Public, batch: int) -> dict[str, FixedPoint]:
        """One fixed point for all three parts."""
        return dict.fromkeys(PARTS, FixedPoint(self.code_bits, self.value_range))

    def claims(self, public: Public) -> dict[str, Any]:
        """No noise, so no epsilon; the sizes of the cryptography."""
        return {
            "dp_holds": False,
            "reason": "the scheme adds no noise: the server learns the exact sum",
            "clients_to_decrypt": self.needed(public),
            "key_bits": self.key_bits,
            "crypto": self.crypto,
        }
