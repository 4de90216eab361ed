"""No defense: the baseline that every table needs."""

from __future__ import annotations

from typing import ClassVar

from leakboard.defenses.base import Defense


class FedSGD(Defense):
    """No defense: every gradient and the model are sent in plain, one gradient per client and round.

    The paper that LeakBoard starts from calls this FedAvg. Federated averaging proper takes several local steps, so
    `fedavg` is an alias only until local steps give that name its meaning.
    """

    name: ClassVar[str] = "fedsgd"
    aliases: ClassVar[tuple[str, ...]] = ("fedavg",)
    citation: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
    claim: ClassVar[str] = "Nothing: this is the control that attacks must break."
