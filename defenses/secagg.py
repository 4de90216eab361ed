"""Secure aggregation."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from leakboard.defenses.building_blocks.clipped import refuse_buffers
from leakboard.defenses.building_blocks.finite import bounded_mean
from leakboard.defenses.building_blocks.secure_sum import SecureSum
from leakboard.defenses.building_blocks.summed_codes import SummedGradient, encoded
from leakboard.defenses.building_blocks.vectors import flat
from leakboard.defenses.crypto.fixed_point import FixedPoint, Integers
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of


class SecAgg(SecureSum, SummedGradient):
    """Secure aggregation: masked updates whose masks cancel in the sum; no noise.

    Gradients are in fixed point and masked in the ring of 64-bit integers (`SecureSum`). The sum is exact up to the
    fixed point, even if clients drop out. What the sum itself reveals is not protected.
    """

    name: ClassVar[str] = "secagg"
    citation: ClassVar[str] = "Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving ML, CCS 2017"
    claim: ClassVar[str] = "The server learns the sum of the updates and nothing else, even if clients drop out."

    value_range: float = Field(1024.0, gt=0, description="largest value of an update; larger ones saturate")

    def codec(self, public: Public, batch: int) -> FixedPoint:
        """44-bit codes: sums of up to 2^18 of them fit into 62 bits."""
        return FixedPoint(44, self.value_range)

    def check(self, public: Public) -> None:
        """Refuse batch norm: its statistics would be sent in plain."""
        refuse_buffers(self, public)
        super().check(public)

    def codes(self, me: Party) -> Integers:
        """Client: its gradient in fixed point."""
        assert me.batch is not None
        batch, task, model = me.batch, task_of(me.public), me.expect("model")["model"]

        def part(chosen: slice, weights: Tensor | None) -> tuple[Parameters]:
            return (task.gradient(model, batch.images[chosen], batch.labels[chosen], weights)[0],)

        with me.phase("Train"):
            (gradient,) = bounded_mean(me, part, None)
        return encoded(me, self.codec(me.public, me.context.batch_size), flat(gradient))

    def claims(self, public: Public) -> dict[str, Any]:
        """No noise, so no epsilon."""
        reason = "the scheme adds no noise: the server learns the exact sum"
        return {"dp_holds": False, "reason": reason, "clients_to_unmask": self.needed(public)}
