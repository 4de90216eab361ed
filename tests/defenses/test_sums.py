"""Defenses whose server learns a sum: it is the sum, to the computed fixed point, encrypted or by the stand-in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.core import registry
from leakboard.defenses.building_blocks.encrypted import Encrypted
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation, unpack_secret
from leakboard.defenses.building_blocks.summed_codes import SummedCodes
from leakboard.defenses.mp_cdp import MpCdp
from leakboard.defenses.noise.calibration import gaussian_mu
from leakboard.federation.party import Party, ProtocolError
from leakboard.federation.payload import Parameters, Value
from leakboard.federation.settings import SERVER, ObservedRounds
from leakboard.federation.transcript import Observation
from tests.defenses.makings import Run, create, flat
from tests.defenses.small import mean_bound, names_of_sums, quiet, small_run, sums, velocity

ROUNDING = 1e-13  # of the clients' own float64 computation; gradients here are below 1
#: where noise cannot be switched off, epsilon is 1e9 and the rest is within 8 standard deviations (false alarm 1e-15)
EDGES = 8.0


# --- without noise everybody is FedSGD ---------------------------------------------------------


def r_of(run: Run, at: Observation) -> Tensor:
    """R as one vector."""
    assert isinstance(run.defense, ModelPerturbation)
    secret, wiring = unpack_secret(at.states[SERVER]["secret"]), run.defense.expanded(run.public).wiring
    model: Parameters = at.states[SERVER]["model"]
    named = {f"{w.name}.weight": w for w in wiring.weights}
    return flat({n: secret.matrix(named[n], value).expand(value.shape) for n, value in model.items()})


def allowed(run: Run, at: Observation) -> Tensor | float:
    """How far the server's mean may be from FedSGD's, coordinate by coordinate."""
    defense = run.defense
    if isinstance(defense, SummedCodes):
        return mean_bound(run, at)
    if isinstance(defense, MpCdp):
        return EDGES * defense.central_sigma(run.public, 3, 4)
    if defense.name in ("mp-ldp", "mp-dp-naive"):
        return EDGES / gaussian_mu(1e9) * 2 / 4 * r_of(run, at)
    return 0.0


#: signs cannot be switched off; test_heuristics.py has what is exact about them
QUIET: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in registry.entries("defense") if name != "sign"] + [
    ("pile", {"variant": "V1"}),
    ("tp-smc", {"clip": 50.0}),
    ("hybridalpha", {"clip": 50.0, "keys": "shared"}),
    ("mp-dp+", {"clip": 50.0, "clip_psi": 50.0, "clip_phi": 50.0}),
    ("ldp", {"clip": 50.0}),
    ("cdp", {"clip": 50.0}),
]


@pytest.mark.parametrize(("name", "parameters"), QUIET, ids=str)
def test_without_noise_and_clipping_the_server_steps_with_fedavg_s_mean(name: str, parameters: dict[str, Any]) -> None:
    """Every registered defense, one round; a new defense that cannot is found here."""
    run, plain = small_run(quiet(name, **parameters)), small_run(create("fedsgd"))
    at = run.rounds()[0]
    expected = velocity(plain.rounds()[0])
    error = (velocity(at) - expected).abs()
    assert bool((error <= allowed(run, at) + ROUNDING).all())
    assert float(expected.abs().max()) > 50 * float(error.max())  # so the bound says something


def test_the_computed_bound_is_half_a_step_of_the_codes() -> None:
    """For pile: at least R times the half step of the gradient alone, and Psi and Phi add little."""
    run = small_run(quiet("tp-smc"))
    assert mean_bound(run, run.rounds()[0]) == pytest.approx(8.0 / (2**23 - 1) / 2)
    run = small_run(quiet("pile"))
    found, gradient_alone = mean_bound(run, run.rounds()[0]), 2.0**12 / (2**39 - 1) / 2
    assert bool((r_of(run, run.rounds()[0]) * gradient_alone < found).all())
    assert float(torch.as_tensor(found).max()) < 1e-5


@pytest.mark.parametrize("name", names_of_sums())
def test_the_bound_is_not_idle(name: str) -> None:
    """Errors of the fixed point are there, and of the size that was computed: the largest beyond a tenth of it."""
    run = small_run(quiet(name), hidden=(8,))
    at = run.rounds()[0]
    error = (velocity(at) - velocity(small_run(create("fedsgd"), hidden=(8,)).rounds()[0])).abs()
    assert float((error / mean_bound(run, at)).max()) > 0.1


def test_two_rounds_without_noise_give_fedavg_s_model() -> None:
    """Defenses without a fixed point."""
    expected = flat(small_run(create("fedsgd"), rounds=2, momentum=0.9).outcome.model)
    for name in ("ldp", "cdp", "grad-prune", "mp", "mp-dp"):
        found = flat(small_run(quiet(name), rounds=2, momentum=0.9).outcome.model)
        assert float((found - expected).abs().max()) < 1e-12, name


def test_values_beyond_the_range_saturate_and_the_record_says_so() -> None:
    run = small_run(sums("secagg", value_range=1e-3))
    found = velocity(run.rounds()[0])
    assert float(found.abs().max()) <= 1e-3 * (1 + 1e-9)
    assert 0.1 < run.outcome.ledger.worst["saturated_share"] <= 1
    assert small_run(sums("secagg")).outcome.ledger.worst["saturated_share"] == 0


# --- real and sampled --------------------------------------------------------------------------

ENCRYPTED = [
    ("tp-smc", {}),
    ("tp-smc", {"noise": False, "clip": None}),
    ("pile", {}),
    ("pile", {"variant": "V1"}),
    ("hybridalpha", {}),
    ("hybridalpha", {"keys": "shared"}),
]
TINY: dict[str, Any] = {"shape": (1, 2, 2), "hidden": (1,), "observe": ObservedRounds(rounds=("first",), targets=1)}


def test_all_encrypted_defenses_are_compared() -> None:
    assert {name for name, _ in ENCRYPTED} == {n for n in names_of_sums() if isinstance(sums(n), Encrypted)}


@pytest.mark.parametrize(("name", "parameters"), ENCRYPTED, ids=str)
def test_real_and_sampled_encryption_give_the_same_bits(name: str, parameters: dict[str, Any]) -> None:
    """Two rounds and a probe, with noise, in float32 as in a benchmark: every aggregate and the final model."""
    training: dict[str, Any] = {**TINY, "rounds": 2, "precision": "float32"}
    real = small_run(sums(name, crypto="real", **parameters), **training)
    sampled = small_run(sums(name, crypto="sampled", **parameters), **training)
    contexts = [run.rounds() + run.rounds("probe") for run in (real, sampled)]
    for first, second in zip(*contexts, strict=True):
        there, here = (o.states[SERVER]["aggregate"] for o in (first, second))
        assert there["clients"] == here["clients"] == 3
        for part, values in there["update"].items():
            assert all(torch.equal(value, here["update"][part][key]) for key, value in values.items())
    assert all(torch.equal(value, sampled.outcome.model[key]) for key, value in real.outcome.model.items())
    assert not torch.equal(flat(real.outcome.model), flat(real.rounds()[0].states[SERVER]["model"]))  # it trained


@pytest.mark.parametrize(("name", "parameters"), ENCRYPTED, ids=str)
def test_what_stands_for_ciphertexts_weighs_as_much(name: str, parameters: dict[str, Any]) -> None:
    training: dict[str, Any] = {"shape": (1, 2, 2), "hidden": (2,), "rounds": 2}
    real, sampled = (
        dict(small_run(sums(name, crypto=crypto, **parameters), **training).outcome.bytes_by_kind)
        for crypto in ("real", "sampled")
    )
    extra = {kind: sampled.pop(kind) for kind in sampled.keys() - real.keys()}
    assert set(extra.values()) <= {0}
    if name == "hybridalpha":  # d_i is a number of 256 bits, sent without its leading zeros; counted with a sign byte
        assert 0 <= sampled.pop("functional_key") - real.pop("functional_key") <= 2 * 2 * 3
    assert sampled == real


@pytest.mark.parametrize("name", ["tp-smc", "pile", "hybridalpha"])
def test_the_sample_is_really_decrypted_and_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that gives one sum more or less than the real ciphertexts is noticed; without a sample it is not."""
    honest = Encrypted.sealed_sum

    def wrong(self: Encrypted, me: Party, updates: list[dict[str, Value]]) -> Value:
        found = honest(self, me, updates)
        assert isinstance(found, Tensor)
        found[0] += 1
        return found

    monkeypatch.setattr(Encrypted, "sealed_sum", wrong)
    with pytest.raises(ProtocolError, match="the sample decrypts to a different sum"):
        small_run(sums(name), shape=(1, 2, 2), hidden=(1,))
    small_run(sums(name, sample_values=0), shape=(1, 2, 2), hidden=(1,))


@pytest.mark.parametrize("name", ["tp-smc", "pile", "hybridalpha"])
def test_times_of_a_sample_are_extrapolated_and_only_those(name: str) -> None:
    training: dict[str, Any] = {"shape": (1, 2, 2), "hidden": (1,)}
    real = small_run(sums(name, crypto="real"), **training).outcome
    sampled = small_run(sums(name), **training).outcome
    assert real.extrapolated == {}
    assert {"client/Grad_Enc", "server/Grad_Dec"} <= set(sampled.extrapolated)
    assert not {"client/Grad_Enc", "server/Grad_Dec"} & set(sampled.seconds)
    assert all(value > 0 for value in sampled.extrapolated.values())


@pytest.mark.parametrize("name", ["tp-smc", "pile", "hybridalpha"])
def test_a_rehearsal_trains_the_same_model_without_ciphertexts(name: str) -> None:
    defense = sums(name, crypto="real")
    training: dict[str, Any] = {"shape": (1, 2, 2), "hidden": (1,), "rounds": 2}
    real, light = small_run(defense, **training), small_run(defense.rehearsal(), **training)
    assert torch.equal(flat(real.outcome.model), flat(light.outcome.model))
    kinds = {path for at in light.rounds() for m in at.messages for path in m.payload}
    assert not {"ciphertexts", "sample"} & kinds
