"""No defense, with local steps: federated averaging proper."""

from __future__ import annotations

from typing import ClassVar

from leakboard.defenses.base import Defense


class FedAvg(Defense):
    """No defense: every client takes local steps and sends the difference of two models in plain.

    The update is w_t - w_(t+1) after `local_steps` steps of SGD at `local_learning_rate` (docs/local-steps.md). Without
    these settings it is FedSGD, as in the paper that defines both. What the paper that LeakBoard starts from calls
    FedAvg averages gradients: that is `fedsgd`.
    """

    name: ClassVar[str] = "fedavg"
    citation: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
    claim: ClassVar[str] = "Nothing: this is the control that attacks must break where clients take local steps."
