"""Rounds under encryption in which not all goes well: clients that vanish, a server that asks for too much."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakboard.defenses.hybridalpha import HybridAlpha
from leakboard.federation.party import Party
from leakboard.federation.settings import SERVER, Dropout
from tests.defenses.makings import Run, create, flat, public_of
from tests.defenses.small import mean_bound, quiet, small_run, sums, velocity

ROUNDING = 1e-13  # of the clients' own float64 computation; gradients here are below 1


def drops(step: str, *clients: int) -> tuple[Dropout, ...]:
    return tuple(Dropout(client=client, round=0, step=step) for client in clients)


@pytest.mark.parametrize("crypto", ["real", "sampled"])
@pytest.mark.parametrize("name", ["tp-smc", "pile", "hybridalpha"])
def test_a_client_that_sent_no_update_is_left_out_of_the_mean(name: str, crypto: str) -> None:
    training: dict[str, Any] = {"shape": (1, 2, 2), "hidden": (1,), "dropouts": drops("update", 1)}
    run = small_run(quiet(name, crypto=crypto), **training)
    expected = small_run(create("fedsgd"), **training).rounds()[0]
    at = run.rounds()[0]
    assert at.states[SERVER]["aggregate"]["clients"] == 2
    assert bool(((velocity(at) - velocity(expected)).abs() <= mean_bound(run, at) + ROUNDING).all())


def lost(run: Run, round_index: int = 0) -> bool:
    """Whether a round left the model as it was, and the server without an aggregate."""
    at = run.rounds()[round_index]
    before = run.rounds("setup")[0] if round_index == 0 else run.rounds()[round_index - 1]
    same = torch.equal(flat(before.states[SERVER]["model"]), flat(at.states[SERVER]["model"]))
    return same and "aggregate" not in at.states[SERVER]


@pytest.mark.parametrize("crypto", ["real", "sampled"])
@pytest.mark.parametrize("name", ["tp-smc", "pile"])
def test_who_is_asked_to_decrypt_and_vanishes_costs_the_round(name: str, crypto: str) -> None:
    """The first t_bar = 2 senders are asked: without client 0 the round is lost, client 2 is not missed."""
    training: dict[str, Any] = {"shape": (1, 2, 2), "hidden": (1,), "rounds": 2}
    without_helper = small_run(sums(name, crypto=crypto), **training, dropouts=drops("decrypt", 0))
    assert lost(without_helper, 0)
    assert not lost(without_helper, 1)
    without_other = small_run(sums(name, crypto=crypto), **training, dropouts=drops("decrypt", 2))
    everybody = small_run(sums(name, crypto=crypto), **training)
    assert torch.equal(flat(without_other.outcome.model), flat(everybody.outcome.model))


@pytest.mark.parametrize("crypto", ["real", "sampled"])
@pytest.mark.parametrize("name", ["tp-smc", "pile", "hybridalpha"])
def test_with_too_few_updates_the_round_is_lost(name: str, crypto: str) -> None:
    training: dict[str, Any] = {"shape": (1, 2, 2), "hidden": (1,), "rounds": 2}
    run = small_run(sums(name, crypto=crypto), **training, dropouts=drops("update", 0, 1))
    assert lost(run, 0)
    assert not lost(run, 1)


# --- the authority of hybridalpha ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "granted"),
    [
        ({0: 1, 1: 1, 2: 1, 3: 1}, True),
        ({0: 1, 1: 1, 2: 1, 3: 1, 4: 1}, True),
        ({0: 1, 1: 1, 2: 1}, False),
        ({0: 1, 1: 1}, False),
        ({0: 1}, False),
        ({}, False),
        ({0: 1, 1: 1, 2: 1, 3: 2}, False),
        ({0: 1, 1: 1, 2: 1, 3: 0}, False),
        ({0: 2, 1: 2, 2: 2, 3: 2}, False),
        ({0: 1, 1: 1, 2: 1, 3: -1}, False),
        ({0: 1, 1: 1, 2: 1, 9: 1}, False),
    ],
    ids=str,
)
def test_the_authority_s_rule(weights: dict[int, int], granted: bool) -> None:
    """K = 5, t = 3, and noise that counts on two honest shares beside two colluders: four known clients of weight 1."""
    defense = create("hybridalpha")
    assert isinstance(defense, HybridAlpha)
    public = public_of(defense=defense, clients=5)
    assert defense.allowed(public, {f"client:{number}": weight for number, weight in weights.items()}) is granted


CHEATS: list[dict[str, int]] = [
    {"client:0": 1},
    {"client:0": 1, "client:1": 1, "client:2": 2},
    {"client:0": 1, "client:1": 0, "client:2": 1},
    {"client:0": 1, "somebody": 1},
]


@pytest.mark.parametrize("crypto", ["real", "sampled"])
@pytest.mark.parametrize("weights", CHEATS, ids=str)
def test_a_server_that_asks_for_more_gets_a_refusal_and_no_step(
    weights: dict[str, int], crypto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(self: HybridAlpha, me: Party) -> None:
        me.state["received"] = me.received("update")
        me.send("authority", "request", {"weights": weights, "sampled": False})

    monkeypatch.setattr(HybridAlpha, "request", greedy)
    run = small_run(sums("hybridalpha", crypto=crypto), shape=(1, 2, 2), hidden=(1,))
    sent = [m.kind for m in run.rounds()[0].messages if m.sender == "authority"]
    assert sent == ["refusal"]
    assert lost(run)
