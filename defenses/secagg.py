"""Secure aggregation."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from leakboard.defenses.building_blocks.finite import bounded_mean, or_zero
from leakboard.defenses.building_blocks.secure_sum import SecureSum
from leakboard.defenses.building_blocks.statistics import with_statistics
from leakboard.defenses.building_blocks.summed_codes import SummedGradient, encoded
from leakboard.defenses.building_blocks.vectors import flat
from leakboard.defenses.crypto.fixed_point import FixedPoint, Integers
from leakboard.federation.local_training import client_update
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of


class SecAgg(SecureSum, SummedGradient):
    """Secure aggregation: masked updates whose masks cancel in the sum; no noise.

    Gradients are in fixed point and masked in the ring of 64-bit integers (`SecureSum`). The sum is exact up to the
    fixed point, even if clients drop out. What the sum itself reveals is not protected. The statistics of batch norm
    are in the sum too.
    """

    name: ClassVar[str] = "secagg"
    citation: ClassVar[str] = "Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving ML, CCS 2017"
    claim: ClassVar[str] = "The server learns the sum of the updates and nothing else, even if clients drop out."
    takes_local_steps: ClassVar[bool] = True

    value_range: float = Field(1024.0, gt=0, description="largest value of an update; larger ones saturate")

    def codec(self, public: Public, batch: int) -> FixedPoint:
        """44-bit codes: sums of up to 2^18 of them fit into 62 bits."""
        return FixedPoint(44, self.value_range)

    def codes(self, me: Party) -> Integers:
        """Client: its gradient, or the update of its local steps, in fixed point."""
        return encoded(me, self.codec(me.public, me.context.batch_size), flat(self._vector(me)))

    def _vector(self, me: Party) -> Parameters:
        """Client: all that it sends. A record whose gradient is not finite counts as zero, where it has its own."""
        assert me.batch is not None
        batch, task, model = me.batch, task_of(me.public), me.expect("model")["model"]
        if me.public.training.is_local or task.buffer_names:
            with me.phase("Train"):
                update, buffers = client_update(task, model, batch.images, batch.labels)
            return or_zero(with_statistics(task, update, model, buffers))

        def part(chosen: slice, weights: Tensor | None) -> tuple[Parameters]:
            return (task.gradient(model, batch.images[chosen], batch.labels[chosen], weights)[0],)

        with me.phase("Train"):
            (gradient,) = bounded_mean(me, part, None)
        return gradient

    def claims(self, public: Public) -> dict[str, Any]:
        """No noise, so no epsilon."""
        reason = "the scheme adds no noise: the server learns the exact sum"
        return {"dp_holds": False, "reason": reason, **self.graph_claims(public)}
