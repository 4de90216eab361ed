"""The paper's baseline TP-SMC."""

from __future__ import annotations

from typing import Any, ClassVar

from leakboard.defenses.building_blocks.noisy_share import NoisyShare
from leakboard.defenses.building_blocks.threshold_sum import ThresholdSum
from leakboard.federation.settings import Public


class TpSmc(ThresholdSum, NoisyShare):
    """TP-SMC (our reconstruction): local noise, reduced by what other honest clients add, under threshold encryption.

    Each client adds N(0, S^2 sigma^2 / (t - 1)) to its clipped gradient and encrypts it as packed 24-bit codes under
    threshold Paillier. t_bar = K - t + 1 clients decrypt the sum together (`ThresholdSum`). The model is sent in plain.
    """

    name: ClassVar[str] = "tp-smc"
    citation: ClassVar[str] = (
        "Truex et al., A Hybrid Approach to Privacy-Preserving Federated Learning, AISec 2019 (our reconstruction)"
    )
    claim: ClassVar[str] = (
        "The server learns only the noisy sum, and no coalition of fewer than t_bar clients learns more."
    )
    code_bits: ClassVar[int] = 24
    takes_local_steps: ClassVar[bool] = True

    def claims(self, public: Public) -> dict[str, Any]:
        """What the noise guarantees, and the sizes of the cryptography."""
        sizes = {"clients_to_decrypt": self.needed(public), "key_bits": self.key_bits, "crypto": self.crypto}
        return super().claims(public) | sizes
