"""The Skellam mechanism under secure aggregation."""

from __future__ import annotations

from typing import ClassVar

from leakboard.core.randomness import Stream
from leakboard.defenses.building_blocks.integer_share import IntegerShare, Law
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.noise.integers import skellam


class Skellam(IntegerShare):
    """Skellam noise: clipped, rotated, rounded updates with differences of Poisson numbers, summed modulo 2^b.

    The sum of Skellam numbers is a Skellam number, so the accounting is that of one draw, and independent of how many
    clients share the noise. The steps are those of `IntegerShare`.
    """

    name: ClassVar[str] = "skellam"
    citation: ClassVar[str] = (
        "Agarwal, Kairouz and Liu, The Skellam Mechanism for Differentially Private Federated Learning, NeurIPS 2021"
    )
    claim: ClassVar[str] = "The server learns only an (epsilon, delta)-DP sum, in a few bits per value."
    law: ClassVar[Law] = "Skellam"

    def integer_noise(self, stream: Stream, sigma: float, count: int) -> Integers:
        """Differences of two Poisson numbers of mean sigma^2 / 2."""
        return skellam(stream, sigma**2, count)
