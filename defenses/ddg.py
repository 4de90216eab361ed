"""The distributed discrete Gaussian mechanism under secure aggregation."""

from __future__ import annotations

from typing import ClassVar

from leakboard.core.randomness import Stream
from leakboard.defenses.building_blocks.integer_share import IntegerShare, Law
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.noise.integers import discrete_gaussian


class Ddg(IntegerShare):
    """Distributed discrete Gaussian: clipped, rotated, rounded updates with integer noise, summed modulo 2^b.

    Each client adds discrete Gaussian noise. The sum of several is not discrete Gaussian, but nearly; the accounting
    includes the difference (`noise.integers.gaussian_sum_rdp`). The steps are those of `IntegerShare`.
    """

    name: ClassVar[str] = "ddg"
    citation: ClassVar[str] = (
        "Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure "
        "Aggregation, ICML 2021"
    )
    claim: ClassVar[str] = "The server learns only an (epsilon, delta)-DP sum, in a few bits per value."
    law: ClassVar[Law] = "discrete Gaussian"

    def integer_noise(self, stream: Stream, sigma: float, count: int) -> Integers:
        """Discrete Gaussian draws of parameter sigma."""
        return discrete_gaussian(stream, sigma, count)
