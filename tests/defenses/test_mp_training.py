"""Model perturbation costs no accuracy: it trains the same model as FedSGD, and recovery is exact enough in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.federation.party import Party
from leakboard.federation.settings import ObservedRounds
from leakboard.federation.task import task_of
from tests.defenses.makings import create, flat, public_of, relative, run, secret_for, weights_of

QUIET: dict[str, dict[str, Any]] = {"mp": {}, "mp-dp": {"noise": False, "clip": None}}
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [32, 16]},
    "convnet": {"width": 4, "bias": True},
    "resnet8": {"width": 8},
}


@pytest.mark.parametrize("variant", ["V1", "V2"])
@pytest.mark.parametrize("scheme", QUIET)
def test_without_noise_it_trains_the_model_of_fedavg(scheme: str, variant: str) -> None:
    """20 rounds with momentum from one seed, in float64."""
    same: dict[str, Any] = {"rounds": 20, "precision": "float64", "record_all": False, "learning_rate": 0.05}
    plain = run(create("fedsgd"), **same).outcome
    hidden = run(create(scheme, variant=variant, **QUIET[scheme]), **same).outcome
    start = run(create("fedsgd"), **{**same, "rounds": 1, "learning_rate": 1e-12}).outcome
    for name, value in plain.model.items():
        assert relative(hidden.model[name], value) < 1e-6
        assert relative(start.model[name], value) > 1e-2  # there was something to learn


def test_without_noise_a_resnet_trains_the_model_of_fedavg() -> None:
    same: dict[str, Any] = {"model": "resnet8", "model_parameters": {"width": 2, "bias": True}, "rounds": 3}
    same |= {"precision": "float64", "record_all": False}
    plain = run(create("fedsgd"), **same).outcome.model
    hidden = run(create("mp-dp", **QUIET["mp-dp"]), **same).outcome.model
    assert relative(flat({name: hidden[name] for name in plain}), flat(plain)) < 1e-6


@pytest.mark.parametrize("scheme", ["mp", "mp-dp"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("variant", ["V1", "V2"])
def test_float32_clients_are_recovered_to_a_thousandth(scheme: str, model: str, variant: str) -> None:
    """The worst over clients, observed rounds and their single-record probes, as the record keeps it."""
    finished = run(
        create(scheme, variant=variant),
        model=model,
        model_parameters=MODELS[model],
        rounds=6,
        shard=32,
        batch_size=8,
        observe=ObservedRounds(targets=3),
        record_all=False,
    )
    error = finished.outcome.ledger.worst["recovery_error"]
    assert 1e-9 < error < 1e-3  # not exact: clients really computed in float32


def shrunk(size: float, **settings: Any) -> float:
    """gamma's scale after a round whose recovered gradient has this norm, on a Phi of a norm of about 1e4."""
    defense = create("mp-dp", **settings)
    assert isinstance(defense, ModelPerturbation)
    public = public_of("mlp", {"hidden": [6]}, defense=defense)
    expanded = defense.expanded(public)
    model = weights_of(task_of(public).skeleton())
    me = Party("server", public, b"")
    me.state["gamma_scale"] = 1.0
    phi = {name: torch.full_like(value, 500.0) for name, value in model.items()}
    recovered = {name: size * value / flat(model).norm() for name, value in model.items()}
    defense._adapt(me, phi, phi, recovered, secret_for(expanded, "V2"))
    return float(me.state["gamma_scale"])


def test_the_server_shrinks_gamma_as_far_as_the_gradient_shrinks() -> None:
    """The error goes with gamma^2 / ||g||, so a gradient of a hundredth asks for a tenth of gamma."""
    assert shrunk(1e-4) < 0.2
    assert shrunk(1e-6) == pytest.approx(shrunk(1e-4) / 10)
    assert shrunk(1e6, clip=None) == 1.0


def test_noise_does_not_pass_for_a_gradient() -> None:
    """A clipped gradient is at most B long, however large what was recovered looks."""
    assert shrunk(1e3, clip=1e-4) == pytest.approx(shrunk(1e-4))


def test_gamma_shrinks_in_a_run_in_which_the_model_fits() -> None:
    finished = run(
        create("mp-dp", noise=False),
        model="convnet",
        model_parameters={"width": 4},
        rounds=60,
        batch_size=8,
        observe=ObservedRounds(targets=3, rounds=("first", "last")),
        record_all=False,
    )
    first, last = (float(o.states["server"]["gamma_scale"]) for o in finished.rounds("train"))
    assert finished.outcome.ledger.worst["recovery_error"] < 1e-3
    assert 0 < last < first


def test_in_float64_gamma_is_left_alone() -> None:
    finished = run(create("mp"), rounds=10, precision="float64")
    scales = {float(o.states["server"]["gamma_scale"]) for o in finished.rounds("train")}
    assert len(scales) == 1
    assert finished.outcome.ledger.worst == {}  # nothing was observed, so nothing measured
