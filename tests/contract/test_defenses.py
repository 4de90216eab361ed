"""What every defense must do besides keeping to its channel (test_canary.py)."""

from __future__ import annotations

import pytest
import torch

from leakboard.federation.task import task_of
from tests.contract.worlds import World, defense_names, defenses, make_world, title


@pytest.fixture(scope="module", params=defenses(), ids=title)
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param, model_parameters={"hidden": [8]})


def test_there_is_a_defense() -> None:
    assert "fedsgd" in defense_names()


def test_a_defense_says_what_it_is(world: World) -> None:
    assert world.defense.summary()
    assert world.defense.citation
    assert world.defense.claim


def test_it_trains_a_finite_model_of_the_right_shape(world: World) -> None:
    task = task_of(world.outcome.public)
    assert set(world.outcome.model) == {*task.parameter_names, *task.buffer_names}
    assert all(bool(value.isfinite().all()) for value in world.outcome.model.values())


def test_the_same_seed_gives_the_same_run(world: World) -> None:
    again = make_world(world.defense, model_parameters={"hidden": [8]})
    for name, value in world.outcome.model.items():
        assert torch.equal(value, again.outcome.model[name])


def test_the_honest_reading_has_an_entry_for_every_observation(world: World) -> None:
    for threat in ("server", "client"):
        view = world.view(threat)
        readings = world.defense.interpret(view)
        assert [r.context for r in readings] == [o.context for o in view.observations]


def test_simulate_touches_no_party_and_repeats_itself(world: World) -> None:
    """It runs on public settings and what a client got, and gives what a real message holds.

    Where a message is sealed, an outsider without keys gets what is inside: a gradient in the model's shapes.
    """
    view = world.view("client")
    received = next(m.payload for o in view.observations for m in o.messages if m.kind == "model")
    batch = world.unseen.select(torch.arange(4))

    first = world.defense.simulate(world.outcome.public, received, batch.images, batch.labels, seed=3)
    second = world.defense.simulate(world.outcome.public, received, batch.images, batch.labels, seed=3)

    sent = next(
        m
        for o in world.view("server").observations
        for m in o.messages
        if m.sender == "client:0" and m.kind == "update"
    )
    is_open = "gradient" in sent.payload
    assert not is_open or first.keys() == sent.payload.keys()
    expected = sent.payload["gradient"] if is_open else world.outcome.model
    for name, value in first["gradient"].items():
        assert torch.equal(value, second["gradient"][name])
        assert value.shape == expected[name].shape
