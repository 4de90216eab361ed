from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.federation.outcome import Outcome
from leakboard.federation.payload import leaves
from leakboard.federation.settings import SERVER, VICTIM
from leakboard.federation.view import Threat, View, make_view, parse_threat
from tests.federation.makings import Keyed, observe_of, public_of, rows, run, shards_of

CLIENTS = 4
SIZES = (12,) * CLIENTS
PARTIES = {
    "server": ("server",),
    "server+keys": ("server",),
    "server+clients:1": ("server", "client:1"),
    "server+clients:3": ("server", "client:1", "client:2", "client:3"),
    "server:active": ("server",),
    "client": ("client:1",),
}


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(public_of(SIZES), Keyed(), observe=observe_of("first", "last"))


def view_of(outcome: Outcome, threat: str) -> View:
    return make_view(
        outcome.transcript, parse_threat(threat, CLIENTS), outcome.public, outcome.secrets, shards_of(SIZES)
    )


def everything_in(value: Any) -> Iterator[bytes]:
    """All values reachable from a view, as bytes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from everything_in(getattr(value, item.name))
    elif hasattr(value, "model_dump"):
        yield from everything_in(value.model_dump())
    else:
        for _, leaf in leaves(value):
            if isinstance(leaf, Tensor):
                yield leaf.numpy().tobytes()
            elif isinstance(leaf, bytes | str):
                yield leaf if isinstance(leaf, bytes) else leaf.encode()
            elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
                yield from everything_in(leaf)


def gradients_of(outcome: Outcome, name: str) -> list[bytes]:
    updates = [m for o in outcome.transcript.observations for m in o.messages if (m.sender, m.kind) == (name, "update")]
    assert updates
    return [g.numpy().tobytes() for m in updates for g in m.payload["gradient"].values()]


@pytest.mark.parametrize("threat", PARTIES)
def test_the_parties_of_each_threat(threat: str) -> None:
    parsed = parse_threat(threat, CLIENTS)
    assert parsed.name == threat
    assert parsed.parties == PARTIES[threat]
    assert parsed.all_keys == (threat == "server+keys")
    assert parsed.active == (threat == "server:active")


@pytest.mark.parametrize("clients", [2, 5, 100])
def test_the_victim_is_never_an_attacker(clients: int) -> None:
    names = ["server", "server+keys", "server:active", "client", *(f"server+clients:{m}" for m in range(1, clients))]
    assert all(VICTIM not in parse_threat(name, clients).parties for name in names)


def test_a_view_of_the_victim_is_refused(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="the victim cannot attack itself"):
        make_view(outcome.transcript, Threat("mine", (SERVER, VICTIM)), outcome.public, outcome.secrets, {})


@pytest.mark.parametrize(
    ("threat", "message"),
    [
        ("server+clients:0", "The threat 'server+clients:0' needs m from 1 to 3 with 4 clients."),
        ("server+clients:4", "The threat 'server+clients:4' needs m from 1 to 3 with 4 clients."),
        ("server+clients:m", "There is no threat 'server+clients:m': allowed are server, server+keys, "),
        ("server+clients:-1", "There is no threat 'server+clients:-1'"),
        ("server+clients", "There is no threat 'server+clients'"),
        ("Server", "There is no threat 'Server'"),
        ("client:2", "There is no threat 'client:2'"),
        ("", "There is no threat ''"),
    ],
)
def test_a_wrong_threat_is_one_sentence(threat: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        parse_threat(threat, 4)
    assert "\n" not in str(caught.value)


def test_a_client_needs_another_one() -> None:
    with pytest.raises(UserError, match="needs at least 2 clients, because client 0 is the victim; given: 1"):
        parse_threat("client", 1)


@pytest.mark.parametrize("threat", PARTIES)
def test_a_view_holds_what_its_parties_hold_and_no_more(outcome: Outcome, threat: str) -> None:
    view, inside = view_of(outcome, threat), set(PARTIES[threat])
    assert len(view.observations) == len(outcome.transcript.observations)
    for seen, full in zip(view.observations, outcome.transcript.observations, strict=True):
        assert seen.context == full.context
        # all messages from or to them, and only those
        assert list(seen.messages) == [m for m in full.messages if inside & {m.sender, m.receiver}]
        assert set(seen.states) == inside & set(full.states)
    assert set(view.secrets) == inside
    assert set(view.holdings) == inside - {SERVER}
    assert any(observation.messages for observation in view.observations)


@pytest.mark.parametrize("threat", PARTIES)
def test_nothing_private_of_the_victim_is_in_any_view(outcome: Outcome, threat: str) -> None:
    found = set(everything_in(view_of(outcome, threat)))
    victim = shards_of(SIZES)[VICTIM]
    assert outcome.secrets[VICTIM] not in found
    assert f"private to {VICTIM}".encode() not in found
    text = b"".join(found)
    assert not any(row in text for row in rows(victim))


def test_the_search_finds_what_is_there(outcome: Outcome) -> None:
    found = set(everything_in(view_of(outcome, "server+clients:1")))
    assert outcome.secrets["client:1"] in found
    assert b"private to client:1" in found
    assert shards_of(SIZES)["client:1"].images.numpy().tobytes() in found
    assert set(gradients_of(outcome, VICTIM)) <= found


def test_a_client_never_sees_another_clients_update(outcome: Outcome) -> None:
    found = set(everything_in(view_of(outcome, "client")))
    for name in ("client:0", "client:2", "client:3"):
        assert not found & set(gradients_of(outcome, name))
        assert outcome.secrets[name] not in found
    assert set(gradients_of(outcome, "client:1")) <= found  # its own
    assert outcome.model["1.weight"].numpy().tobytes() in found  # and the model that it was sent


def test_server_and_keys_adds_only_keys(outcome: Outcome) -> None:
    plain, keyed = view_of(outcome, "server"), view_of(outcome, "server+keys")
    for without, with_keys in zip(plain.observations, keyed.observations, strict=True):
        assert without.messages == with_keys.messages
        assert without.states == with_keys.states
        assert without.keys == {}
    assert plain.secrets == keyed.secrets
    assert plain.holdings == keyed.holdings == {}
    setup = keyed.observations[0]
    assert set(setup.keys) == {"authority", "client:0", "client:1", "client:2", "client:3"}
    assert set(setup.keys["authority"]) == {"master"}


def test_colluders_bring_all_they_hold_and_the_victim_nothing(outcome: Outcome) -> None:
    view = view_of(outcome, "server+clients:2")
    shards = shards_of(SIZES)
    assert set(view.holdings) == {"client:1", "client:2"}
    assert all(torch.equal(view.holdings[n].images, shards[n].images) for n in view.holdings)
    setup = view.observations[0]
    assert set(setup.keys) == {"client:1", "client:2"}
    assert setup.states["client:2"]["note"] == "private to client:2"
    assert VICTIM not in {*view.secrets, *view.holdings, *setup.keys, *setup.states}


def test_observations_by_kind_and_round(outcome: Outcome) -> None:
    view = view_of(outcome, "server")
    assert [o.context.round for o in view.of_kind("train")] == [0, 3]
    assert [o.context.probe for o in view.of_kind("probe", 3)] == [0, 1]
    assert view.of_kind("probe", 2) == ()
    assert len(view.of_kind("final")) == 1


def test_a_view_is_frozen_and_refers_to_no_federation(outcome: Outcome) -> None:
    view = view_of(outcome, "server")
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.threat = "client"  # type: ignore[misc]
    assert {f.name for f in dataclasses.fields(view)} == {
        "threat",
        "parties",
        "public",
        "observations",
        "secrets",
        "holdings",
    }
    assert "seed" not in view.public.model_dump_json()
