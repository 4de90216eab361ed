"""No defense: the baseline that every table needs."""

from __future__ import annotations

from typing import ClassVar

from leakboard.defenses.base import Defense


class FedAvg(Defense):
    """No defense: every gradient and the model travel in plain (FedSGD: one gradient a round, as in the paper)."""

    name: ClassVar[str] = "fedavg"
    citation: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
    claim: ClassVar[str] = "Nothing: this is the control that attacks must break."
