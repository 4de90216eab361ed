"""What all defenses share whose clients see the true model: per-example clipping and the Gaussian mechanism."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from core.errors import UserError
from defenses.base import Defense
from defenses.noise.budget import Budget
from defenses.noise.calibration import gaussian_mu
from federation.example_norms import loss_norms
from federation.party import Party
from federation.payload import Parameters
from federation.settings import Public
from federation.task import task_of


class Clipped(Budget, Defense):
    """DP-SGD's update (Abadi et al. 2016): the mean of per-example gradients, each clipped to norm B.

    g = 1/|D| sum_b min(1, B / ||g_b||) g_b. Noise is calibrated by the analytic Gaussian mechanism (Balle and
    Wang 2018): sigma = S / mu(epsilon, delta).
    """

    noise: bool = Field(True, description="switch all noise off (for exactness tests)")

    def check(self, public: Public) -> None:
        """Batch norm ties the examples of a batch together: no example has a gradient of its own then."""
        refuse_buffers(self, public)

    def clipped_gradient(self, me: Party) -> Parameters:
        """Client: the clipped mean gradient of its batch on the model it got."""
        assert me.batch is not None
        task, model = task_of(me.public), me.expect("model")["model"]
        with me.phase("Train"):
            factors = self._factors(me, model)
            gradient, _ = task.gradient(model, me.batch.images, me.batch.labels, factors)
        if factors is not None and me.oracle is not None:
            me.oracle.note_clipping(factors)
        return gradient

    def _factors(self, me: Party, model: Parameters) -> Tensor | None:
        """min(1, B / ||g_b||) (B,) of this client's batch; None where clipping is off."""
        if self.clip is None or me.batch is None:
            return None
        norms = loss_norms(task_of(me.public), model, me.batch.images, me.batch.labels)
        return (self.clip / norms.clamp(min=1e-12)).clamp(max=1.0)

    def sigma(self, batch: int) -> float:
        """S sigma: the noise that one release of the mean gradient of a batch needs; 0 where noise is off."""
        return self.size(batch) / gaussian_mu(self.epsilon, self.delta) if self.noise else 0.0

    def base_claims(self, public: Public, mu: float) -> dict[str, Any]:
        """The claimed and the composed epsilon; or that all noise is off."""
        if not self.noise:
            return {"dp_holds": False, "reason": "all noise is switched off"}
        return self.budget_claims(public, mu)


def refuse_buffers(defense: Defense, public: Public) -> None:
    """Refuse networks with batch norm, for schemes that protect gradients alone."""
    if task_of(public).buffer_names:
        raise UserError(
            f"The defense '{defense.name}' needs a network without batch norm (its running statistics would travel "
            f"unprotected); given: '{public.model}' with buffers."
        )
