"""Rules about channels: what a party knows came to it in a message.

Canaries are planted in every private place: each party's secret key, its state, and every record of every client.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import torch

from leakboard.contract.checking import Broken, NotApplicable
from leakboard.contract.worlds import THREATS, World, blobs, world_of
from leakboard.core import registry
from leakboard.defenses.base import Defense
from leakboard.federation.payload import raw_bytes
from leakboard.federation.replay import covert_channels
from leakboard.federation.settings import SERVER, client_name
from leakboard.federation.view import View


def check_no_view_holds_what_no_message_carried(defense: Defense) -> None:
    """No view holds a secret, a state or a record of a party outside it, unless a message carried it there."""
    world, states = canary_world(defense)
    for threat in THREATS:
        found = leaks(world, states, threat)
        if found:
            raise Broken(f"The view '{threat}' holds something private of {found[0]} that no message carried.")


def check_a_view_holds_all_of_its_own_parties(defense: Defense) -> None:
    """A view holds the secret, the state and the records of its own parties: a step erases nothing of them."""
    world, states = canary_world(defense)
    all_canaries, search = canaries(world, states), search_in(world)
    for threat in THREATS:
        view = world.view(threat)
        found = search(view, all_canaries)
        for party in view.parties:
            if not found.issuperset(all_canaries[party]):
                raise Broken(f"The view '{threat}' lacks what was planted in the state of {party}.")


def check_no_party_acts_on_more_than_its_own_knowledge(defense: Defense) -> None:
    """A party that runs without the others, on its messages alone, does exactly the same."""
    make = Maker.of(defense)
    world = world_of(defense, record_all=True)
    with _main_is_not_imported_again():
        found = covert_channels(make, world.outcome, world.shards, world.observe, world.seed)
    for party, paths in found.items():
        raise Broken(f"Alone, {party} did something else, at {paths[0]}: it reaches more than its state and inbox.")


# --- canaries --------------------------------------------------------------------------------------


def planted(defense: Defense, clients: int = 3) -> dict[str, torch.Tensor]:
    """What is planted in the state of each party: 16 random numbers."""
    generator = torch.Generator().manual_seed(77)
    names = [SERVER, *defense.third_parties(), *(client_name(i) for i in range(clients))]
    return {name: torch.rand(16, generator=generator) for name in names}


def canary_world(defense: Defense) -> tuple[World, dict[str, torch.Tensor]]:
    """A world with planted states, all of it recorded, and what was planted."""
    states = planted(defense)
    return world_of(defense, record_all=True, canaries=states), states


def canaries(world: World, states: dict[str, torch.Tensor]) -> dict[str, list[bytes]]:
    """By owner: its secret, what was planted in its state, and a row of pixels of each of its records."""
    found: dict[str, list[bytes]] = {}
    for party, secret in world.outcome.secrets.items():
        found[party] = [secret, raw_bytes(states[party])]
        if party in world.shards:
            # a row through the middle of the digit: unlike anything else in 32 float32 values
            found[party] += [raw_bytes(image[0, 14:18]) for image in world.shards[party].images.unbind(0)]
    return found


def leaks(world: World, states: dict[str, torch.Tensor], threat: str) -> list[str]:
    """Owners outside the view whose canary is in it although no message carried it there."""
    view, all_canaries, search = world.view(threat), canaries(world, states), search_in(world)
    unsent = search(view, all_canaries) - search(view, all_canaries, messages_only=True)
    return [
        owner
        for owner, private in all_canaries.items()
        if owner not in view.parties
        for canary in private
        if canary in unsent
    ]


class Search:
    """Looks for the canaries of one world in its views. Views share most of what they hold, which is read once."""

    def __init__(self) -> None:
        self._found: dict[bytes, frozenset[bytes]] = {}

    def __call__(
        self, view: View, by_owner: dict[str, list[bytes]], *, messages_only: bool = False
    ) -> frozenset[bytes]:
        """The canaries that a view holds anywhere; or only in what reached its parties in messages."""
        wanted = {canary for private in by_owner.values() for canary in private}
        held = set(blobs(view, messages_only=messages_only))
        for blob in held - self._found.keys():
            self._found[blob] = frozenset(canary for canary in wanted if canary in blob)
        return frozenset[bytes]().union(*(self._found[blob] for blob in held))


@lru_cache(maxsize=1)  # rules that follow each other ask about one world
def search_in(world: World) -> Search:
    """The search in the views of this world; it was planted once, so the canaries are the same each time."""
    return Search()


# --- replay in another process ---------------------------------------------------------------------


@dataclass(frozen=True)
class Maker:
    """Makes a defense anew in another process; `file` is that of a plugin outside the package, or empty."""

    module: str
    name: str
    file: str
    parameters: dict[str, Any]

    @classmethod
    def of(cls, defense: Defense) -> Maker:
        """For a class that another process can import; `NotApplicable` for any other."""
        kind = type(defense)
        module = sys.modules.get(kind.__module__)
        if kind.__module__ == "__main__" or module is None or "<locals>" in kind.__qualname__:
            raise NotApplicable("no other process can import the class: write it into a file and check that.")
        outside = [file for file in registry.loaded_files() if file == getattr(module, "__file__", None)]
        return cls(kind.__module__, kind.__qualname__, outside[0] if outside else "", defense.parameters())

    def __call__(self) -> Defense:
        """The defense."""
        if self.file:
            registry.load_file(self.file)
        module = sys.modules.get(self.module) or importlib.import_module(self.module)
        made = reduce(getattr, self.name.split("."), module).model_validate(self.parameters)
        assert isinstance(made, Defense)
        return made


@contextmanager
def _main_is_not_imported_again() -> Iterator[None]:
    """A child would run the caller's script once more, which may well begin with a check."""
    main = sys.modules["__main__"]
    before = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        for name in before:
            setattr(main, name, None)
        yield
    finally:
        for name, value in before.items():
            setattr(main, name, value)
