"""Clipping only: what the noisy defenses cost and hide before any noise is added."""

from __future__ import annotations

from typing import ClassVar

from leakboard.defenses.building_blocks.clipped import PerExampleClipping


class Clip(PerExampleClipping):
    """FedSGD with per-example clipping and no noise: the row that separates the cost of clipping from that of noise.

    Each client sends g = 1/|D| sum_b min(1, B / ||g_b||) g_b. If every example is clipped, a bound that is c times
    larger has the same effect as a learning rate that is c times larger.
    """

    name: ClassVar[str] = "clip"
    citation: ClassVar[str] = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016 (its clipping alone)"
    claim: ClassVar[str] = "None: it shows what clipping alone costs and hides."
