"""Sums under encryption: everything is encrypted, or a sample of it."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field

from leakboard.defenses.building_blocks.summed_codes import SummedCodes
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.crypto.stand_in import pad, to_tensor, to_words
from leakboard.federation.party import Party, RoundContext
from leakboard.federation.payload import Payload, Value
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.transcript import Observation


class Encrypted(SummedCodes):
    """Codes that are sent as ciphertexts.

    `crypto: real` encrypts everything in every round. `crypto: sampled` really encrypts `sample_values` codes of the
    first round, spread evenly over its clients. It checks that they decrypt to the right sum, and measures their times.
    The other codes are sent under a stand-in cipher (defenses/crypto/stand_in.py). Both give the same sums.
    """

    crypto: Literal["real", "sampled"] = Field(
        "sampled", description="real: encrypt everything; sampled: a part of the first round, to measure time"
    )
    sample_values: int = Field(
        12_288, ge=0, description="crypto: sampled: how many codes are really encrypted, over all clients; 0: none"
    )

    def rehearsal(self) -> Self:
        """The same training without ciphertexts and timing, for shadow models: the sums are the same integers."""
        return self.model_copy(update={"crypto": "sampled", "sample_values": 0})

    @property
    def encrypts(self) -> bool:
        """Whether any real ciphertext is made."""
        return self.crypto == "real" or self.sample_values > 0

    def is_sampled(self, context: RoundContext) -> bool:
        """Whether a sample is really encrypted in this run of the protocol."""
        first = context.kind == "train" and context.round == 0
        return self.crypto == "sampled" and self.sample_values > 0 and first

    def sample_size(self, me: Party) -> int:
        """How many of its codes each client really encrypts in the sampled round."""
        share = -(-self.sample_values // len(me.participants))
        return min(share, self.code_count(me.public))

    def sealed(self, me: Party, codes: Integers, label: str | None) -> Value:
        """Client: its codes under the stand-in cipher."""
        return to_tensor(codes.astype(np.uint64) + pad(me.state["sealing_key"], label, len(codes)))

    def unsealed(self, observation: Observation, public: Public, label: str | None) -> dict[str, Integers]:
        """The sealed codes of the clients whose own sealing key is in this observation, by client."""
        keys = {n: s["sealing_key"] for n, s in observation.states.items() if s.get("sealing_key")}
        return {
            m.sender: (to_words(m.payload["sealed"]) - pad(keys[m.sender], label, self.code_count(public))).astype(
                np.int64
            )
            for m in observation.messages
            if m.kind == "update" and m.receiver == SERVER and m.sender in keys
        }

    def sealed_sum(self, me: Party, updates: list[Payload]) -> Value:
        """Server: the sum of sealed codes."""
        total = np.zeros(self.code_count(me.public), dtype=np.uint64)
        for body in updates:
            total += to_words(body["sealed"])
        return to_tensor(total)
