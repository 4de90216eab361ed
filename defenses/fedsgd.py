"""No defense: the baseline that every table needs."""

from __future__ import annotations

from typing import ClassVar

from leakboard.core.errors import UserError
from leakboard.defenses.base import Defense
from leakboard.federation.settings import Public


class FedSGD(Defense):
    """No defense: every gradient and the model are sent in plain, one gradient per client and round.

    The paper that LeakBoard starts from calls this FedAvg. Federated averaging proper, in which clients take local
    steps and send the difference of two models, is the plugin `fedavg`.
    """

    name: ClassVar[str] = "fedsgd"
    citation: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
    claim: ClassVar[str] = "Nothing: this is the control that attacks must break."

    def check(self, public: Public) -> None:
        """Refuse local steps: with them it would be `fedavg`."""
        if public.training.is_local:
            raise UserError(
                "The defense 'fedsgd' sends one gradient per round: with local steps use 'fedavg'; "
                f"given: {public.training.local_steps} local steps."
            )
