"""No view holds what no message carried; those who smuggle are caught.

Canaries are planted in every private place: each party's secret key, its state, and every record of every client.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from leakboard.core import registry
from leakboard.defenses.base import Defense
from leakboard.federation.payload import raw_bytes
from leakboard.federation.replay import covert_channels
from leakboard.federation.rounds import Outcome
from leakboard.federation.settings import SERVER
from tests.contract.cheats import SmugglesGradients, SmugglesImages
from tests.contract.worlds import THREATS, World, defenses, holds, make_world, title


def create(name: str, parameters: dict[str, object]) -> Defense:
    made = registry.create("defense", name, parameters)
    assert isinstance(made, Defense)
    return made


def planted(parties: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(77)
    names = [SERVER, "authority", "dealer", *(f"client:{i}" for i in range(parties))]
    return {name: torch.rand(16, generator=generator) for name in names}


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
    view = world.view(threat)
    return [
        owner
        for owner, private in canaries(world, states).items()
        if owner not in view.parties
        for canary in private
        if holds(view, canary) and not holds(view, canary, messages_only=True)
    ]


@pytest.fixture(scope="module", params=defenses(), ids=title)
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param, record_all=True, canaries=planted())


@pytest.mark.parametrize("threat", THREATS)
def test_no_view_holds_what_no_message_carried(world: World, threat: str) -> None:
    assert leaks(world, planted(), threat) == []


@pytest.mark.parametrize("threat", THREATS)
def test_canaries_of_the_view_s_own_parties_are_found(world: World, threat: str) -> None:
    """The search itself works: a party's own secret, state and records are in its view."""
    view = world.view(threat)
    for party in view.parties:
        for canary in canaries(world, planted())[party]:
            assert holds(view, canary)


def test_no_party_acts_on_more_than_its_own_knowledge(world: World) -> None:
    make = partial(create, world.defense.name, world.defense.parameters())
    assert covert_channels(make, plain(world), world.shards, world.observe, world.seed) == {}


def plain(world: World) -> Outcome:
    """The same run without canaries: a replay starts from empty states."""
    return make_world(world.defense, record_all=True).outcome


def test_a_defense_that_smuggles_images_into_a_state_is_caught_by_canaries() -> None:
    world = make_world(SmugglesImages(), canaries=planted())
    assert set(leaks(world, planted(), "server")) == {"client:0", "client:1", "client:2"}


@pytest.mark.parametrize("cheat", [SmugglesImages, SmugglesGradients])
def test_a_defense_with_a_covert_channel_is_caught_by_replay(cheat: type[Defense]) -> None:
    SmugglesGradients.taken.clear()
    world = make_world(cheat(), record_all=True)
    found = covert_channels(cheat, world.outcome, world.shards, world.observe, world.seed)
    assert set(found) == {SERVER}


def test_the_victim_cannot_be_an_attacker(world: World) -> None:
    for threat in THREATS:
        assert "client:0" not in world.view(threat).parties
