"""Defenses with local steps and with batch norm in train mode: what they sum, clip, noise, claim and refuse."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch

from leakboard.core.errors import Unsupported, UserError
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Defense, check_local_steps
from leakboard.defenses.building_blocks.finite import norm
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.ldp import Ldp
from leakboard.defenses.noise.calibration import gaussian_mu
from leakboard.federation.party import Party
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import VICTIM, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import make_view, parse_threat
from tests.defenses.makings import Run, create, images_of, public_of
from tests.defenses.small import quiet, small_run

STEPS: dict[str, Any] = {"local_steps": 4, "local_batches": 2, "local_learning_rate": 0.05, "learning_rate": 1.0}
#: how far fixed point may be off
EXACT = {"secagg": 1e-7, "tp-smc": 1e-5, "hybridalpha": 1e-2}
NAMES = ("ldp", "cdp", "clip", "grad-prune", *EXACT)


def batch_norm_run(defense: Defense, **training: Any) -> Run:
    """Two rounds of a small network with batch norm, which all messages of are kept."""
    settings = {"precision": "float64", "momentum": 0.0, "learning_rate": 1.0, "loss": "ce", **training}
    public = public_of("convnet", {"norm": "batch", "width": 2}, defense=defense, shard=8, **settings)
    shards = {
        client_name(i): LabelledImages(images_of(8, 1, 8, 8, seed=i), (torch.arange(8) + i) % 4) for i in range(3)
    }
    defense.check(public)
    return Run(defense, Federation(defense, public, shards, None, 0, record_all=True).run(), shards, None)


@pytest.mark.parametrize("name", NAMES)
def test_without_noise_every_defense_trains_the_model_of_fedavg(name: str) -> None:
    expected = small_run(create("fedavg"), rounds=2, **STEPS).outcome.model
    found = small_run(quiet(name), rounds=2, **STEPS).outcome.model
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=EXACT.get(name, 1e-12), rtol=0)


def test_server_rate_one_without_momentum_averages_the_clients_models() -> None:
    run = small_run(create("fedavg"), **STEPS)
    (observation,) = (o for o in run.outcome.transcript.observations if o.context.kind == "train")
    sent = [m.payload["gradient"] for m in observation.messages if m.kind == "update"]
    start = next(m.payload["model"] for m in observation.messages if m.kind == "model")
    for key, value in run.outcome.model.items():
        clients = torch.stack([start[key] - one[key] for one in sent])
        torch.testing.assert_close(value, clients.mean(0))


def test_the_whole_update_is_clipped_and_the_claims_say_so() -> None:
    defense = create("ldp", clip=0.01, noise=False)
    run = small_run(defense, **STEPS)
    (observation,) = (o for o in run.outcome.transcript.observations if o.context.kind == "train")
    sizes = [norm(m.payload["gradient"]) for m in observation.messages if m.kind == "update"]
    assert sizes == pytest.approx([0.01] * 3)
    noisy = create("ldp", clip=0.01)
    assert isinstance(noisy, Ldp)
    public = run.outcome.public
    claims = noisy.claims(public)
    assert claims["unit"].startswith("client")
    assert claims["S_batch"] == pytest.approx(0.02)  # whatever its records, a client's update moves by at most 2B
    assert claims["compositions"] == public.total_rounds
    assert noisy.sigma(public, 4) == pytest.approx(0.02 / gaussian_mu(3.0, noisy.delta))
    assert noisy.sigma(public, 64) == noisy.sigma(public, 4)  # more records do not hide a client
    assert "sensitivity" not in claims  # it would say `record`
    assert "unit" not in noisy.claims(public_of())
    assert noisy.claims(public_of())["sensitivity"] == "record"


@pytest.mark.parametrize("name", ["ldp", "tp-smc", "hybridalpha"])
def test_the_noise_of_a_run_is_that_of_a_clients_update(name: str) -> None:
    loud = create(name, **({"key_bits": 256, "sample_values": 0} if name == "tp-smc" else {}), clip=1.0)
    quiet_run, run = (small_run(d, hidden=(40,), **STEPS) for d in (quiet(name), loud))
    off = torch.cat([(run.outcome.model[n] - v).flatten() for n, v in quiet_run.outcome.model.items()])
    assert isinstance(loud, Ldp) or hasattr(loud, "share_sigma")
    sigma = loud.sigma(run.outcome.public, 4) if isinstance(loud, Ldp) else loud.share_sigma(run.outcome.public, 4)
    # 760 values: the standard error of a deviation is 2.6 %, so 15 % is nearly six of them
    assert float(off.std()) == pytest.approx(sigma / math.sqrt(3), rel=0.15)


@pytest.mark.parametrize("name", ["mp", "mp-dp", "mp-dp+", "mp-cdp", "mp-ldp", "mp-dp-naive", "pile"])
def test_model_perturbation_refuses_local_steps_with_its_reason(name: str) -> None:
    defense = create(name)
    assert isinstance(defense, ModelPerturbation)
    with pytest.raises(UserError, match="recovers one gradient only"):
        defense.check(public_of(defense=defense, **STEPS))


def test_model_perturbation_names_the_networks_that_it_accepts() -> None:
    with pytest.raises(Unsupported, match=r"BatchNorm2d .*it accepts convolutions.*norm: none"):
        create("mp").check(public_of("convnet", {"norm": "batch"}))


def test_model_perturbation_names_all_that_is_in_its_way_at_once() -> None:
    with pytest.raises(UserError) as caught:
        create("mp-dp").check(public_of("convnet", {"norm": "batch"}, loss="ce", **STEPS))
    mse, local, network = caught.value.problems
    assert "needs loss 'mse'" in mse
    assert "recovers one gradient only" in local
    assert "BatchNorm2d" in network
    assert "it accepts convolutions" in network


def test_fedsgd_refuses_local_steps_and_names_fedavg() -> None:
    with pytest.raises(UserError, match="with local steps use 'fedavg'"):
        create("fedsgd").check(public_of(**STEPS))


class OwnUpdate(Defense):
    """A defense with an update of its own, which knows nothing of local steps."""

    name: ClassVar[str] = "own-update"

    def update(self, me: Party) -> None:
        """Send nothing."""


class Both(OwnUpdate):
    """The same, with the promise that it takes local steps."""

    name: ClassVar[str] = "both"
    takes_local_steps: ClassVar[bool] = True


def test_a_defense_with_its_own_update_must_say_that_it_takes_local_steps() -> None:
    with pytest.raises(UserError, match=r"'own-update' sends one gradient per round.*given: 4 local steps"):
        check_local_steps(OwnUpdate(), public_of(**STEPS))
    check_local_steps(OwnUpdate(), public_of())
    check_local_steps(Both(), public_of(**STEPS))
    for name in ("fedavg", *NAMES):
        check_local_steps(create(name), public_of(**STEPS))
    for name in ("mf", "soteria", "sign", "top-k", "ddp", "ddp-mf", "ddg", "skellam"):  # not written for whole updates
        with pytest.raises(UserError, match="sends one gradient per round"):
            check_local_steps(create(name), public_of(**STEPS))


# --- batch norm in train mode ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_statistics_of_batch_norm_reach_the_model_under_every_defense(name: str) -> None:
    expected = batch_norm_run(create("fedavg"), **STEPS).outcome.model
    found = batch_norm_run(quiet(name), **STEPS).outcome.model
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=EXACT.get(name, 1e-12), rtol=0)


def test_secagg_sums_statistics_without_local_steps_too_and_shows_none_in_plain() -> None:
    expected = batch_norm_run(create("fedsgd"), learning_rate=0.1)
    run = batch_norm_run(create("secagg"), learning_rate=0.1)
    for key, value in expected.outcome.model.items():
        torch.testing.assert_close(run.outcome.model[key], value, atol=1e-7, rtol=0)
    view = make_view(
        run.outcome.transcript, parse_threat("server", 3), run.outcome.public, run.outcome.secrets, run.shards
    )
    (observation, *_) = view.of_kind("train")
    assert all(set(m.payload) == {"masked"} for m in observation.messages if m.kind == "update")
    # the mean of the clients' statistics is what the server reads, and no client's own
    reading = run.defense.read(observation, run.outcome.public)
    assert set(reading.statistics) == {AGGREGATE}
    plain = expected.outcome.transcript.observations[1]
    own = expected.defense.read(plain, expected.outcome.public).statistics
    assert len(own) == 3
    for key in ("0.1.running_mean", "0.1.running_var"):
        mean = torch.stack([one[key] for one in own.values()]).mean(0)
        torch.testing.assert_close(reading.statistics[AGGREGATE][key], mean, atol=1e-7, rtol=0)


def test_colluders_subtract_their_own_statistics_from_the_mean() -> None:
    """Two of three clients collude: what is left of the sum are the victim's own statistics."""
    expected = batch_norm_run(create("fedsgd"), learning_rate=0.1)
    plain = expected.defense.read(expected.outcome.transcript.observations[1], expected.outcome.public)
    run = batch_norm_run(create("secagg"), learning_rate=0.1)
    threat = parse_threat("server+clients:2", 3)
    view = make_view(run.outcome.transcript, threat, run.outcome.public, run.outcome.secrets, run.shards)
    (observation, *_) = view.of_kind("train")
    reading = run.defense.read(observation, run.outcome.public)
    assert set(reading.statistics) == set(reading.gradients)
    for key in ("0.1.running_mean", "0.1.running_var"):
        torch.testing.assert_close(reading.statistics[VICTIM][key], plain.statistics[VICTIM][key], atol=1e-6, rtol=0)


def test_ldp_noises_the_statistics_too() -> None:
    calm, loud = (batch_norm_run(d, **STEPS).outcome.model for d in (quiet("ldp"), create("ldp")))
    for key in ("0.1.running_mean", "4.1.running_var"):
        assert float((calm[key] - loud[key]).abs().min()) > 0


@pytest.mark.parametrize("name", ["ldp", "cdp", "tp-smc", "hybridalpha"])
def test_noise_makes_no_variance_negative_and_the_model_predicts(name: str) -> None:
    keys = {"key_bits": 256, "sample_values": 0} if name == "tp-smc" else {}
    run = batch_norm_run(create(name, epsilon=0.5, **keys), **STEPS)
    messages = [m.payload for o in run.outcome.transcript.observations for m in o.messages if m.kind == "update"]
    held = [run.outcome.model, *(body["buffers"] for body in messages if "buffers" in body)]
    variances = [value for one in held for key, value in one.items() if key.endswith("running_var")]
    assert all(bool((value >= 0).all()) for value in variances)
    assert any(bool((value == 0).any()) for value in variances)  # the noise is that large here
    task = task_of(run.outcome.public)
    assert bool(task.predict(run.outcome.model, images_of(4, 1, 8, 8)).isfinite().all())


@pytest.mark.parametrize("name", ["ldp", "cdp", "clip", "tp-smc", "hybridalpha"])
def test_clipping_of_examples_refuses_batch_norm_and_says_what_to_do(name: str) -> None:
    with pytest.raises(UserError, match=r"batch norm mixes the examples.*local_steps"):
        create(name).check(public_of("convnet", {"norm": "batch"}))


@pytest.mark.parametrize("name", ["mf", "ddp", "ddg"])
def test_who_takes_no_local_steps_does_not_advise_them(name: str) -> None:
    with pytest.raises(UserError, match="batch: give a network without batch norm; given"):
        create(name).check(public_of("convnet", {"norm": "batch"}))
