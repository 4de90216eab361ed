"""Central differential privacy with noise that is correlated over rounds."""

from __future__ import annotations

from typing import Any, ClassVar

from leakboard.defenses.base import mean
from leakboard.defenses.building_blocks.correlated_rounds import CorrelatedRounds
from leakboard.defenses.building_blocks.vectors import added_in_place_of
from leakboard.defenses.cdp import Cdp
from leakboard.federation.party import Party
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of


class Mf(CorrelatedRounds, Cdp):
    """cdp with noise that partly cancels from round to round (matrix factorisation, banded square root).

    The server adds S sens(C) / (K mu) (C^{-1} z)_t to the mean of round t (`CorrelatedRounds`). A band of 1 is cdp.
    """

    name: ClassVar[str] = "mf"
    citation: ClassVar[str] = (
        "Kalinin and Lampert, Banded Square Root Matrix Factorization for Differentially Private Model Training, "
        "NeurIPS 2024"
    )
    claim: ClassVar[str] = "The trained models are differentially private; the server is trusted with every gradient."
    #: the sensitivity over rounds is that of one clipped gradient per record, not of a client's update
    takes_local_steps: ClassVar[bool] = False

    def aggregate(self, me: Party) -> None:
        """Server: average, add this round's noise, remember it, take the step.

        A lost round has noise too, which nobody sees: clients go on to their next batches in it, and sens(C) counts in
        rounds of the noise.
        """
        updates = [body["gradient"] for body in me.received("update").values()]
        with me.phase("DP"):
            count = sum(value.numel() for value in task_of(me.public).skeleton().parameters())
            noise = self.next_noise(me, "central", count)
        if not updates:
            return
        with me.phase("Agg"):
            average = mean(updates)
        with me.phase("DP"):
            scaled = self.sigma(me.public, me.context.batch_size) / len(updates) * noise
        self.step(me, added_in_place_of(average, scaled), {})

    def claims(self, public: Public) -> dict[str, Any]:
        """The exact epsilon of the published models; the server's view is not protected."""
        found = super().claims(public)
        return found | self.run_claims(public) if self.noise and self.clip is not None else found
