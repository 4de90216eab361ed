"""Servers that send weights which overflow for one record and not for another."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of

#: the square of it is beyond float32
HUGE = 1e30


def overflowing(public: Public, data: LabelledImages, chosen: Tensor) -> Parameters:
    """An mlp's weights whose hidden unit 0 is on for the `chosen` (N,) records alone: their logits overflow in float32.

    The unit computes HUGE u . x, with u . x = 1 for the chosen and -1 for all others (least squares), and enters all
    logits times HUGE. Every other weight is as torch initialises it.
    """
    task = task_of(public)
    model = task.initial(0)
    inputs = task.normalise(data.images.double()).flatten(1)
    wanted = torch.where(chosen, 1.0, -1.0).double()
    telling = torch.linalg.pinv(inputs) @ wanted
    assert torch.equal((inputs @ telling).sign(), wanted)
    first, *_, last = [name for name in task.parameter_names if name.endswith("weight")]
    model[first][0] = (HUGE * telling).to(model[first])
    model[last][:, 0] = HUGE
    return model


def starting_from(defense: Defense, model: Parameters) -> Defense:
    """The defense with a server that starts from this model; all else is as it was."""

    class Poisoned(type(defense)):  # type: ignore[misc]  # a class that is known at run time alone
        """Begins with weights of the server's choice."""

        def initialise(self, me: Party) -> None:
            super().initialise(me)
            me.state["model"] = {name: value.clone() for name, value in model.items()}

    return cast(Defense, Poisoned.model_validate(defense.parameters()))
