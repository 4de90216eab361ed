"""Defenses that leak a client's secret to the server past the channel; the replay must catch them.

They stand in a module of their own because the replay builds them anew in a spawned process.
"""

from __future__ import annotations

import gc
import pickle
from multiprocessing.connection import Connection
from typing import Any, ClassVar

from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.party import Party

_SEEN: dict[str, Any] = {}


class ByModule(FedSGD):
    """The victim leaves its gradient in a module global, the server takes it from there."""

    def update(self, me: Party) -> None:
        super().update(me)
        assert me.batch is not None
        _SEEN[me.name] = me.batch.images

    def aggregate(self, me: Party) -> None:
        super().aggregate(me)
        if "client:0" in _SEEN:
            me.state["stolen"] = _SEEN["client:0"]


class ByClass(FedSGD):
    """Each client leaves one constant bit on the class; the server keeps it among its keys, where no state shows it."""

    left: ClassVar[list[int]] = []

    def update(self, me: Party) -> None:
        super().update(me)
        assert me.shard is not None
        type(self).left.append(int(me.shard.labels[0]))

    def aggregate(self, me: Party) -> None:
        super().aggregate(me)
        if self.left:
            me.keys["label"] = self.left[0]


class ByMessage(FedSGD):
    """A client that looks at a global before it sends: what it sends depends on another."""

    def update(self, me: Party) -> None:
        super().update(me)
        me.send("server", "note", {"others": sorted(_SEEN)})
        _SEEN[me.name] = True


class Planted:
    """Whoever unpickles it writes a file."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return exec, (f"open({self.marker!r}, 'a').write('executed')",)


class Planting(FedSGD):
    """Writes a pickle to the pipe of the replay, past the harness."""

    marker: str = ""

    def update(self, me: Party) -> None:
        for pipe in [thing for thing in gc.get_objects() if isinstance(thing, Connection) and thing.writable]:
            pipe.send_bytes(pickle.dumps(Planted(self.marker)))
        super().update(me)


class PlantedError(Exception):
    """Whoever unpickles it writes a file."""

    def __reduce__(self) -> Any:
        return exec, (f"open({self.args[0]!r}, 'a').write('executed')",)


class Raising(FedSGD):
    """Fails in its first round with an error that does harm where it is unpickled."""

    name: ClassVar[str] = "raising"
    marker: str = ""

    def update(self, me: Party) -> None:
        raise PlantedError(self.marker)


def make_planting(marker: str) -> FedSGD:
    return Planting(marker=marker)


def make_fedavg() -> FedSGD:
    return FedSGD()


def make_by_module() -> FedSGD:
    return ByModule()


def make_by_class() -> FedSGD:
    return ByClass()


def make_by_message() -> FedSGD:
    return ByMessage()


def make_nothing() -> FedSGD:
    raise RuntimeError("no defense today")


def forget() -> None:
    """Start as a fresh process would."""
    _SEEN.clear()
    ByClass.left.clear()
