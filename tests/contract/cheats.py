"""Defenses that break the rule. They must be caught; see test_canary.py."""

from __future__ import annotations

from typing import ClassVar

import torch

from leakboard.defenses.base import Defense
from leakboard.federation.party import Party

_smuggled: dict[str, torch.Tensor] = {}


class SmugglesImages(Defense):
    """The clients leave their images in a global variable, and the server takes them into its state."""

    name: ClassVar[str] = "smuggles-images"

    def update(self, me: Party) -> None:
        assert me.batch is not None
        _smuggled[me.name] = me.batch.images
        super().update(me)

    def aggregate(self, me: Party) -> None:
        super().aggregate(me)
        me.state["loot"] = dict(_smuggled)


class SmugglesGradients(Defense):
    """The server steps along gradients that it took from a class attribute, not from messages."""

    name: ClassVar[str] = "smuggles-gradients"
    taken: ClassVar[list[torch.Tensor]] = []

    def update(self, me: Party) -> None:
        super().update(me)
        assert me.batch is not None
        type(self).taken.append(me.batch.images.mean())

    def aggregate(self, me: Party) -> None:
        super().aggregate(me)
        shift = sum(type(self).taken, torch.zeros(()))
        me.state["model"] = {name: value + 0 * value + 1e-3 * shift for name, value in me.state["model"].items()}
