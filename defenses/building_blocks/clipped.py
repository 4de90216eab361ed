"""Per-example clipping and the Gaussian mechanism, for defenses whose clients see the true model."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.defenses.base import Defense, Gradient, Transform
from leakboard.defenses.building_blocks.finite import LIMIT, bounded_mean
from leakboard.defenses.noise.budget import Budget, clipping
from leakboard.federation.example_norms import clip_factors, loss_norms
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.task import task_of


class PerExampleClipping(Defense):
    """DP-SGD's update without its noise (Abadi et al. 2016): the mean of per-example gradients of norm at most B.

    g = 1/|D| sum_b min(1, B / ||g_b||) g_b; a g_b that is not finite counts as zero (`building_blocks.finite`).
    """

    clip: float | None = Field(1.0, gt=0, description="B, the L2 bound of an example's gradient; null: off")

    def check(self, public: Public) -> None:
        """Refuse batch norm: it mixes the examples of a batch, so that no example has its own gradient."""
        refuse_buffers(self, public)

    def update(self, me: Party) -> None:
        """Client: clip and send."""
        me.send(SERVER, "update", {"gradient": self.clipped_gradient(me), "buffers": {}})

    def clipped_gradient(self, me: Party) -> Parameters:
        """Client: the clipped mean gradient of its batch on the received model."""
        assert me.batch is not None
        batch, task, model = me.batch, task_of(me.public), me.expect("model")["model"]

        def part(chosen: slice, weights: Tensor | None) -> tuple[Parameters]:
            return (task.gradient(model, batch.images[chosen], batch.labels[chosen], weights)[0],)

        with me.phase("Train"):
            factors = self._factors(me, model)
            (gradient,) = bounded_mean(me, part, factors, (LIMIT if self.clip is None else self.clip,))
        if factors is not None and me.oracle is not None:
            me.oracle.note_clipping(factors)
        return gradient

    def _factors(self, me: Party, model: Parameters) -> Tensor | None:
        """min(1, B / ||g_b||) (B,) of this client's batch; None if clipping is off."""
        if self.clip is None or me.batch is None:
            return None
        norms = loss_norms(task_of(me.public), model, me.batch.images, me.batch.labels)
        return clip_factors(norms, self.clip)

    def mimic_records(self, observed: Gradient, public: Public) -> Transform | None:
        """Each record's gradient is scaled down to norm B."""
        return None if self.clip is None else clipping(self.clip)


class Clipped(Budget, PerExampleClipping):
    """Clipped updates with noise by the analytic Gaussian mechanism (Balle and Wang 2018).

    sigma = S / mu(epsilon, delta), with S = 2B / batch for one replaced record.
    """

    noise: bool = Field(True, description="switch all noise off (for exactness tests)")

    def sigma(self, public: Public, batch: int) -> float:
        """S / mu: the noise that one release of the mean gradient of a batch needs; 0 if noise is off."""
        return self.size(batch) / self.round_mu(public) if self.noise else 0.0

    def base_claims(self, public: Public, mu: float) -> dict[str, Any]:
        """The claimed and the composed epsilon, or the statement that all noise is off."""
        if not self.noise:
            return {"dp_holds": False, "reason": "all noise is switched off"}
        return self.budget_claims(public, mu)


def refuse_buffers(defense: Defense, public: Public) -> None:
    """Refuse networks with batch norm, for schemes that protect only gradients."""
    if task_of(public).buffer_names:
        raise UserError(
            f"The defense '{defense.name}' needs a network without batch norm (its running statistics would be sent "
            f"unprotected); given: '{public.model}' with buffers."
        )
