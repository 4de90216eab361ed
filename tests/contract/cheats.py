"""Defenses that break the rule. They must be caught; see test_canary.py."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PrivateAttr

from leakboard.defenses.base import Defense
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters

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


class RemembersOnItsOwn(Defense):
    """A client counts its rounds in an attribute of its own copy of the defense, and not in its state."""

    name: ClassVar[str] = "remembers-on-its-own"
    _rounds: int = PrivateAttr(0)

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        if me.context.kind == "train":
            self._rounds += 1
        return {name: value / (1 + self._rounds) for name, value in gradient.items()}


class RemembersInTheParty(Defense):
    """The server keeps its momentum in an attribute of the party."""

    name: ClassVar[str] = "remembers-in-the-party"

    def step(self, me: Party, gradient: Parameters, buffers: Parameters) -> None:
        before = getattr(me, "smoothed", gradient)
        me.smoothed = {name: (value + before[name]) / 2 for name, value in gradient.items()}  # type: ignore[attr-defined]
        super().step(me, me.smoothed, buffers)  # type: ignore[attr-defined]


class RemembersInTheModule(Defense):
    """The clients count in a global variable of their module."""

    name: ClassVar[str] = "remembers-in-the-module"
    counted: ClassVar[dict[str, int]] = {}

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        if me.context.kind == "train":
            self.counted[me.name] = self.counted.get(me.name, 0) + 1
        return {name: value / (1 + self.counted.get(me.name, 0)) for name, value in gradient.items()}
