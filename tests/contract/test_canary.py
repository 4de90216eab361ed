"""The rules about channels find something: defenses that smuggle are caught, and the victim is no attacker."""

from __future__ import annotations

import pytest

from leakboard.contract import apply
from leakboard.contract.channels import (
    canary_world,
    check_no_party_acts_on_more_than_its_own_knowledge,
    check_no_view_holds_what_no_message_carried,
    leaks,
)
from leakboard.contract.worlds import THREATS, make_world
from leakboard.defenses.base import Defense
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.replay import covert_channels
from leakboard.federation.settings import SERVER
from tests.contract.cheats import SmugglesGradients, SmugglesImages


@pytest.fixture(autouse=True)
def nothing_taken() -> None:
    SmugglesGradients.taken.clear()


def test_a_defense_that_smuggles_images_into_a_state_is_caught_by_canaries() -> None:
    world, states = canary_world(SmugglesImages())
    assert set(leaks(world, states, "server")) == {"client:0", "client:1", "client:2"}
    result = apply(check_no_view_holds_what_no_message_carried, SmugglesImages())
    assert result.outcome == "broken"
    assert "something private of client:0 that no message carried" in result.reason


@pytest.mark.parametrize("cheat", [SmugglesImages, SmugglesGradients])
def test_a_defense_with_a_covert_channel_is_caught_by_replay(cheat: type[Defense]) -> None:
    world = make_world(cheat(), record_all=True)
    found = covert_channels(cheat, world.outcome, world.shards, world.observe, world.seed)
    assert set(found) == {SERVER}
    result = apply(check_no_party_acts_on_more_than_its_own_knowledge, cheat())
    assert result.outcome == "broken"
    assert "Alone, server did something else" in result.reason


def test_the_victim_cannot_be_an_attacker() -> None:
    world = make_world(FedSGD())
    for threat in THREATS:
        assert "client:0" not in world.view(threat).parties
