"""Sums of gradient, Psi and Phi: model perturbation whose server sees no part of a single client."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation, unpack_secret
from leakboard.defenses.building_blocks.summed_codes import SummedCodes, encoded
from leakboard.defenses.building_blocks.vectors import flat, shaped
from leakboard.defenses.crypto.fixed_point import FixedPoint, Floats, Integers
from leakboard.defenses.perturbation.server import recover
from leakboard.federation.party import Party, RoundContext
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation

PARTS = ("gradient", "psi", "phi")


class PerturbedParts(SummedCodes, ModelPerturbation):
    """The three parts of a client's message as codes, concatenated."""

    @abstractmethod
    def codecs(self, public: Public, batch: int) -> dict[str, FixedPoint]:
        """The fixed point of each part, for a batch of this size."""

    def noised(self, me: Party, part: str, values: Floats) -> Floats:
        """Client: a part with the noise that the scheme adds to it; none here."""
        return values

    def template(self, public: Public) -> dict[str, Parameters]:
        """Names and shapes of the three parts, in order."""
        network = task_of(public).skeleton()
        own: Parameters = {name: network.get_parameter(name) for name in self.expanded(public).trained}
        psi = own if self.variant == "V2" else {n: v.expand(public.classes, *v.shape) for n, v in own.items()}
        return {"gradient": own, "psi": psi, "phi": own}

    def code_count(self, public: Public) -> int:
        """One code per value of gradient, Psi and Phi."""
        return sum(value.numel() for part in self.template(public).values() for value in part.values())

    def codes(self, me: Party) -> Integers:
        """Client: LMT, then all three parts in fixed point."""
        codecs = self.codecs(me.public, me.context.batch_size)
        parts = zip(PARTS, self.local_parts(me), strict=True)
        return np.concatenate([encoded(me, codecs[p], self.noised(me, p, flat(value))) for p, value in parts])

    def decoded(self, public: Public, context: RoundContext, totals: Integers, clients: int) -> Payload:
        """The means of gradient, Psi and Phi, in float64: the recovery needs them exact."""
        codecs = self.codecs(public, context.batch_size)
        found: Payload = {}
        start = 0
        for part, template in self.template(public).items():
            size = sum(value.numel() for value in template.values())
            found[part] = shaped(codecs[part].decode(totals[start : start + size], clients) / clients, template)
            start += size
        return found

    def apply(self, me: Party, average: Payload, clients: int) -> None:
        """Server: MU_Server."""
        self.recover_and_step(me, average, clients)

    def gradient_of(self, update: Payload, server: Payload, public: Public) -> Parameters:
        """Server: divide the perturbation out."""
        wiring, secret = self.expanded(public).wiring, unpack_secret(server["secret"])
        return recover(update["gradient"], update["psi"], update["phi"], wiring, secret)

    def plain_updates(self, observation: Observation, public: Public) -> dict[str, Payload]:
        """Only the updates that the keys in the observation decrypt; otherwise the server has only sums."""
        opened = self.opened(observation, public)
        return {client: self.decoded(public, observation.context, codes, 1) for client, codes in opened.items()}
