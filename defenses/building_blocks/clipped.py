"""Per-example clipping and the Gaussian mechanism, for defenses whose clients see the true model."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.defenses.base import Defense, Gradient, Transform, accepts_local_steps
from leakboard.defenses.building_blocks.finite import bounded_mean, norm, or_zero
from leakboard.defenses.building_blocks.statistics import with_statistics, without_statistics
from leakboard.defenses.noise.budget import Budget, clipping
from leakboard.federation.example_norms import clip_factors, clipped_gradient
from leakboard.federation.local_training import client_update
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.task import task_of


class PerExampleClipping(Defense):
    """DP-SGD's update without its noise (Abadi et al. 2016): the mean of per-example gradients of norm at most B.

    g = 1/|D| sum_b min(1, B / ||g_b||) g_b; a g_b that is not finite counts as zero (`building_blocks.finite`). With
    local steps the whole update u, statistics of batch norm included, is one vector: min(1, B / ||u||) u (McMahan et
    al. 2018).
    """

    takes_local_steps: ClassVar[bool] = True

    clip: float | None = Field(1.0, gt=0, description="B, the L2 bound of an example's gradient; null: off")

    def check(self, public: Public) -> None:
        """Refuse batch norm without local steps: it mixes the examples, so that none has its own gradient."""
        if task_of(public).buffer_names and not public.training.is_local:
            ways = ["a network without batch norm"]
            if accepts_local_steps(self):
                ways.insert(0, "local_steps and local_learning_rate, by which whole updates are clipped")
            raise UserError(
                f"The defense '{self.name}' clips the gradient of each example, and batch norm mixes the examples of a "
                f"batch: give {', or '.join(ways)}; given: '{public.model}' with batch norm."
            )

    def update(self, me: Party) -> None:
        """Client: clip and send."""
        self.send_update(me, self.clipped_gradient(me))

    def send_update(self, me: Party, sent: Parameters) -> None:
        """Client: send a vector as `clipped_gradient` makes it, statistics of batch norm as buffers."""
        gradient, buffers = without_statistics(task_of(me.public), sent, me.expect("model")["model"])
        me.send(SERVER, "update", {"gradient": gradient, "buffers": buffers})

    def clipped_gradient(self, me: Party) -> Parameters:
        """Client: the clipped mean gradient of its batch on the received model, or its clipped update."""
        assert me.batch is not None
        batch, task, model = me.batch, task_of(me.public), me.expect("model")["model"]
        if me.public.training.is_local:
            return self._clipped_update(me)

        def part(chosen: slice, weights: Tensor | None) -> tuple[Parameters]:
            return (task.gradient(model, batch.images[chosen], batch.labels[chosen], weights)[0],)

        with me.phase("Train"):
            if self.clip is None:
                return bounded_mean(me, part, None)[0]
            whole, factors = clipped_gradient(task, model, batch.images, batch.labels, self.clip)
            (gradient,) = bounded_mean(me, part, factors, (self.clip,), (whole,))
        if me.oracle is not None:
            me.oracle.note_clipping(factors)
        return gradient

    def _clipped_update(self, me: Party) -> Parameters:
        """Client: the update of its local steps and the statistics, scaled to norm B; zero if it is not finite."""
        assert me.batch is not None
        task, model = task_of(me.public), me.expect("model")["model"]
        with me.phase("Train"):
            update, buffers = client_update(task, model, me.batch.images, me.batch.labels)
            whole = or_zero(with_statistics(task, update, model, buffers))
            if self.clip is None:
                return whole
            factors = clip_factors(torch.tensor([norm(whole)], dtype=torch.float64), self.clip)
        if me.oracle is not None:
            me.oracle.note_clipping(factors)
        return {name: value * float(factors) for name, value in whole.items()}

    def mimic_records(self, observed: Gradient, public: Public) -> Transform | None:
        """Each record's gradient is scaled down to norm B; with local steps records have none."""
        return None if self.clip is None or public.training.is_local else clipping(self.clip)

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """With local steps each client's update is scaled down to norm B."""
        return clipping(self.clip) if self.clip is not None and public.training.is_local else None


class Clipped(Budget, PerExampleClipping):
    """Clipped updates with noise by the analytic Gaussian mechanism (Balle and Wang 2018).

    sigma = S / mu(epsilon, delta), with S = 2B / batch for one replaced record.
    """

    noise: bool = Field(True, description="switch all noise off (for exactness tests)")

    def sigma(self, public: Public, batch: int) -> float:
        """S / mu: the noise that one release of the mean gradient of a batch needs; 0 if noise is off."""
        return self.shift(public, batch) / self.round_mu(public) if self.noise else 0.0

    def base_claims(self, public: Public, mu: float) -> dict[str, Any]:
        """The claimed and the composed epsilon, or the statement that all noise is off."""
        if not self.noise:
            return {"dp_holds": False, "reason": "all noise is switched off"}
        return self.budget_claims(public, mu)
