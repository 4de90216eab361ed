"""Who holds what under mp-dp, and what the honest reading makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.defenses.building_blocks.model_perturbation import unpack_secret
from leakboard.defenses.perturbation.client import forward
from leakboard.federation.payload import leaves, raw_bytes
from leakboard.federation.settings import SERVER, ObservedRounds, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import View
from tests.defenses.makings import Run, create, flat, relative, run, true_gradient, updates

WATCH = ObservedRounds(rounds=("last",), targets=2)


@pytest.fixture(scope="module", params=["V1", "V2"])
def finished(request: pytest.FixtureRequest) -> Run:
    return run(create("mp-dp", variant=request.param), observe=WATCH)


@pytest.fixture(scope="module", params=["mp", "mp-dp"])
def quiet(request: pytest.FixtureRequest) -> Run:
    settings: dict[str, Any] = {"noise": False, "clip": None} if request.param == "mp-dp" else {}
    return run(create(request.param, **settings), observe=WATCH, model_parameters={"hidden": [32]})


def tensors(view: View) -> Iterator[Tensor]:
    for o in view.observations:
        for value in (*(m.payload for m in o.messages), *o.states.values(), *o.keys.values()):
            yield from (leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor))


def holds(view: View, secret: Tensor) -> bool:
    """Whether the view has these values somewhere, in float64 or float32."""
    wanted = {raw_bytes(secret.double()), raw_bytes(secret.float())}
    return any(raw_bytes(value) in wanted for value in tensors(view) if value.numel() == secret.numel())


def test_the_server_holds_every_clients_messages_and_r(finished: Run) -> None:
    view = finished.view("server")
    for at in view.of_kind("train") + view.of_kind("probe"):
        sent = updates(at)
        assert set(sent) == set(finished.public.clients)
        assert all(set(body) == {"gradient", "psi", "phi"} for body in sent.values())
        assert set(at.states) == {SERVER}
        assert set(at.states[SERVER]["secret"]) == {"r", "s", "gamma", "direction"}


def test_the_server_sees_psi_and_phi_without_noise(finished: Run) -> None:
    """The noise is on the gradient alone: the same run without it sends the same Psi and Phi."""
    quiet = run(create("mp-dp", noise=False, **{"variant": finished.defense.parameters()["variant"]}), observe=WATCH)
    noisy_first, clean_first = (updates(r.rounds("train")[0]) for r in (finished, quiet))
    for name, body in noisy_first.items():
        for part in ("psi", "phi"):
            assert all(torch.equal(v, clean_first[name][part][key]) for key, v in body[part].items())
        assert relative(flat(body["gradient"]), flat(clean_first[name]["gradient"])) > 0.1


def test_a_client_holds_the_perturbed_model_and_in_v2_its_direction(finished: Run) -> None:
    view = finished.view("client")
    for at in view.of_kind("train"):
        received = [m for m in at.messages if m.receiver == "client:1" and m.kind == "model"]
        assert [m.sender for m in received] == [SERVER]
        expected = {"model", "direction"} if finished.defense.parameters()["variant"] == "V2" else {"model"}
        assert set(received[0].payload) == expected
        assert set(at.states) == {"client:1"}


def test_a_client_never_holds_the_servers_secrets_or_anothers_update(finished: Run) -> None:
    view = finished.view("client")
    for whole in finished.rounds("train") + finished.rounds("probe"):
        server = whole.states[SERVER]
        secret = unpack_secret(server["secret"])
        hidden = [*secret.r, *secret.s, secret.gamma, secret.additive, *server["distributed"].values()]
        if finished.defense.parameters()["variant"] == "V1":
            hidden.append(secret.direction)
        others = [m.payload for m in whole.messages if m.kind == "update" and m.sender != "client:1"]
        hidden += [leaf for body in others for part in ("gradient", "psi") for leaf in body[part].values()]
        assert not any(holds(view, value) for value in hidden)
        assert holds(finished.view("server"), secret.r[0])  # `holds` finds what is there


def test_colluders_bring_their_keys(finished: Run) -> None:
    at = finished.view("server+clients:1").of_kind("train")[0]
    assert set(at.states) == {SERVER, "client:1"}
    assert set(at.states["client:1"]) >= {"private_key", "public_keys"}


def test_the_servers_reading_is_every_clients_noisy_gradient(finished: Run) -> None:
    readings = [r for r in finished.defense.interpret(finished.view("server")) if r.context.kind == "probe"]
    assert readings
    for reading in readings:
        assert set(reading.gradients) == set(finished.public.clients)
        assert all(g.clients == 1 for g in reading.gradients.values())
        assert reading.model is not None
        batch = finished.batch(reading.context, 0)
        true = true_gradient(finished, reading.model, batch)
        found = reading.gradients["client:0"].values
        assert relative(flat({name: found[name] for name in true}), flat(true)) > 1


def test_without_noise_the_servers_reading_is_exact(quiet: Run) -> None:
    seen = 0
    for reading in quiet.defense.interpret(quiet.view("server")):
        if reading.context.kind != "probe":
            continue
        assert reading.model is not None
        for client in range(3):
            true = true_gradient(quiet, reading.model, quiet.batch(reading.context, client))
            found = reading.gradients[client_name(client)].values
            assert relative(flat({name: found[name] for name in true}), flat(true)) < 1e-3
            seen += 1
    assert seen == 6


def test_a_clients_reading_is_a_plain_model_with_perturbed_logits(finished: Run) -> None:
    """Its logits are y_hat = y + alpha r: not those of the true model."""
    defense, task = finished.defense, task_of(finished.public)
    images = finished.shards["client:1"].images
    whole = {o.context: o for o in finished.rounds("train") + finished.rounds("probe")}
    readings = [r for r in defense.interpret(finished.view("client")) if r.context in whole]
    assert readings
    for reading in readings:
        at = whole[reading.context]
        assert reading.gradients == {}
        assert reading.model is not None
        assert set(reading.model) == set(task.parameter_names)
        sent = next(m.payload["model"] for m in at.messages if m.kind == "model")
        expanded = defense.expanded(finished.public)  # type: ignore[attr-defined]
        perturbed = forward(expanded, sent, task.normalise(images))
        secret, true = (
            unpack_secret(at.states[SERVER]["secret"]),
            task.predict(at.states[SERVER]["distributed"], images),
        )
        found = task.predict(reading.model, images)
        assert relative(found, perturbed.logits) < 1e-4
        assert relative(found, true + perturbed.alpha[:, None] * secret.additive) < 1e-4
        assert relative(found, true) > 0.1


def test_an_outsider_can_simulate_a_client_on_any_graph() -> None:
    for settings in ({}, {"neighbours": 1}, {"neighbours": 2, "mode": "corrected"}):
        finished = run(create("mp-dp", **settings))
        received = next(m.payload for o in finished.rounds("train") for m in o.messages if m.kind == "model")
        batch = finished.shards["client:0"].select(torch.arange(4))
        first, other = (
            finished.defense.simulate(finished.public, received, batch.images, batch.labels, seed) for seed in (1, 2)
        )
        real = updates(finished.rounds("train")[0])["client:0"]
        assert all(value.shape == real["gradient"][name].shape for name, value in first["gradient"].items())
        assert all(torch.equal(value, other["phi"][name]) for name, value in first["phi"].items())
        assert not torch.equal(flat(first["gradient"]), flat(other["gradient"]))
