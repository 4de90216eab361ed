"""Central differential privacy: a trusted server noises the aggregate."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from leakboard.defenses.base import mean
from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.building_blocks.statistics import with_statistics, without_statistics
from leakboard.defenses.building_blocks.vectors import added_in_place_of
from leakboard.federation.party import Party
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of


class Cdp(Clipped):
    """DP-SGD with a trusted server: clients send clipped gradients in plain, the server adds noise to the mean.

    Gaussian noise of sigma = S / (K mu(epsilon, delta)) is on every coordinate of the mean over K clients. With local
    steps each client's whole update is clipped and S = 2B (DP-FedAvg): the budget then covers all records of a client.
    """

    name: ClassVar[str] = "cdp"
    citation: ClassVar[str] = "McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018"
    claim: ClassVar[str] = "The trained models are differentially private; the server is trusted with every gradient."

    def aggregate(self, me: Party) -> None:
        """Server: average, add noise, take the step."""
        updates, task = list(me.received("update").values()), task_of(me.public)
        if not updates:
            return
        with me.phase("Agg"):
            gradient, buffers = (mean([body[part] for body in updates]) for part in ("gradient", "buffers"))
            average = with_statistics(task, gradient, me.state["model"], buffers)
        with me.phase("DP"):
            size = sum(value.numel() for value in average.values())
            noise = self.sigma(me.public, me.context.batch_size) / len(updates) * me.stream("central").normal(size)
        self.step(me, *without_statistics(task, added_in_place_of(average, noise), me.state["model"]))

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed and the composed epsilon of the published models; the server's view is not protected."""
        batch = public.training.batch_size
        found = self.base_claims(
            public, self.shift(public, batch) / self.sigma(public, batch) if self.noise else math.inf
        )
        if self.noise:
            sigma = self.sigma(public, batch) / public.training.per_round
            reason = "holds for the published models only if the server is trusted; it sees every clipped gradient"
            found |= {"sigma_central": sigma, "dp_holds": False, "reason": reason, "epsilon_against": ["client"]}
        return found
