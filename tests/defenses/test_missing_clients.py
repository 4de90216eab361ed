"""Clients that are missing at a rate: who counts, what noise is left, what the claims say, what the server holds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.defenses.base import AGGREGATE
from leakboard.defenses.building_blocks.secure_sum import SecureSum, _without_masks, _words
from leakboard.defenses.building_blocks.summed_codes import SummedCodes
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.noise.calibration import gaussian_epsilon, gaussian_mu
from leakboard.federation.settings import SERVER, Dropout, ObservedRounds, Training
from leakboard.federation.transcript import Observation
from tests.defenses.makings import Run, create, flat, public_of, relative, updates
from tests.defenses.small import chi_square_fits, mean_bound, quiet, sent_codes, small_run, sums, velocity

#: rates at which seed 0 has rounds with nobody, one and several clients missing, and one that is late
MISSING: dict[str, Any] = {"clients": 5, "rounds": 8, "shard": 4, "learning_rate": 1e-12, "dropout": 0.2, "late": 0.1}
FALSE_ALARM = 1e-6


def counted(run: Run) -> list[int]:
    """How many updates are in the sum of each round; 0 if it was lost."""
    servers = [at.states[SERVER] for at in run.rounds()]
    return [int(state["aggregate"]["clients"]) if "aggregate" in state else 0 for state in servers]


def heard(run: Run) -> list[int]:
    """How many updates of each round reached the server, late ones included."""
    return [len(updates(at)) for at in run.rounds()]


def late_in(at: Observation) -> set[str]:
    """Whose update the server of secure aggregation holds without counting it."""
    return set(updates(at)) - set(at.states[SERVER]["round"]["senders"])


def test_rates_that_are_zero_leave_no_trace() -> None:
    assert not {"dropout", "late"} & Training(rounds=1).model_dump().keys()
    stored = Training(rounds=1, dropout=0.1).model_dump()
    assert stored["dropout"] == 0.1
    assert Training.model_validate(stored).misses_at_random
    with pytest.raises(UserError, match=r"dropout \(0.6\) and late \(0.5\) together must be less than 1"):
        Training.parse({"rounds": 1, "dropout": 0.6, "late": 0.5}, "training")


def test_the_same_clients_are_missing_under_every_defense_and_others_at_another_seed() -> None:
    plain, masked, other = (
        small_run(create(name), seed=seed, **MISSING) for name, seed in (("fedsgd", 0), ("secagg", 0), ("fedsgd", 1))
    )
    assert [set(updates(at)) for at in plain.rounds()] == [set(updates(at)) for at in masked.rounds()]
    assert [set(updates(at)) for at in plain.rounds()] != [set(updates(at)) for at in other.rounds()]


def test_the_shares_are_the_rates() -> None:
    run = small_run(create("fedsgd"), **{**MISSING, "clients": 40, "rounds": 25})
    absent = 1 - sum(heard(run)) / (40 * 25)
    missing = run.outcome.ledger.worst["clients_missing"] / (40 * 25)
    assert absent == pytest.approx(0.2, abs=6 * math.sqrt(0.16 / 1000))
    assert missing == pytest.approx(0.3, abs=6 * math.sqrt(0.21 / 1000))


@pytest.mark.parametrize("name", ["secagg", "ddp", "mp-dp+", "tp-smc", "hybridalpha"])
def test_the_mean_is_that_of_the_updates_in_time(name: str) -> None:
    """fedsgd's mean over the same clients; a sum over fewer than three of five is not opened."""
    run, plain = small_run(quiet(name), **MISSING), small_run(create("fedsgd"), **MISSING)
    assert {0, 5} < set(counted(run)) <= {0, 3, 4, 5}
    for at, expected, count in zip(run.rounds(), plain.rounds(), counted(run), strict=True):
        if count:
            error = (velocity(at) - velocity(expected)).abs()
            assert bool((error <= mean_bound(run, at) + 1e-9).all())


@pytest.mark.parametrize("name", ["fedsgd", "cdp", "ldp", "mp-dp", "soteria", "sign", "top-k"])
def test_plain_messages_survive_any_number_of_missing_clients(name: str) -> None:
    run = small_run(create(name), **{**MISSING, "dropout": 0.6, "late": 0.0, "learning_rate": 0.1})
    nobody = sum(count == 0 for count in heard(run))
    assert run.outcome.ledger.worst["rounds_lost"] == nobody
    assert bool(flat(run.outcome.model).isfinite().all())


@pytest.mark.parametrize("name", ["ddp", "tp-smc", "ddg", "skellam", "mp-dp+"])
def test_noisy_sums_survive_one_missing_client_and_lose_the_round_with_two(name: str) -> None:
    run = small_run(sums(name), **MISSING)
    in_time = counted(small_run(quiet("secagg", honest=2), **MISSING))
    assert counted(run) == [n if n >= 4 else 0 for n in in_time]
    assert run.outcome.ledger.worst["rounds_lost"] == counted(run).count(0) > 0
    assert run.outcome.ledger.worst["most_missing"] >= 2


def test_the_noise_of_a_sum_is_that_of_the_clients_in_it() -> None:
    """What `noise_scale` says, on a network that is wide enough to see it; the claims are for the fewest shares."""
    wide: dict[str, Any] = {**MISSING, "shape": (1, 8, 8), "hidden": (64,)}
    noisy, bare = (small_run(create("ddp", noise=noise), **wide) for noise in (True, False))
    found = set()
    for at, without in zip(noisy.rounds(), bare.rounds(), strict=True):
        if "aggregate" not in at.states[SERVER]:
            continue
        laws = noisy.defense.noise_scale(at, noisy.public)
        added = (velocity(at) - velocity(without)) / flat(laws[AGGREGATE].deviation)
        assert chi_square_fits(float(added.square().sum()), len(added), FALSE_ALARM)
        found.add(int(at.states[SERVER]["aggregate"]["clients"]))
    assert found == {4, 5}


@pytest.mark.parametrize("name", ["ddp", "tp-smc", "hybridalpha", "mp-dp+", "ddg", "skellam"])
def test_claims_count_the_fewest_shares_that_a_sum_may_have(name: str) -> None:
    """K = 5, t = 3: one client may be missing, so four noises are certain; claimed is what two of them give."""
    whole, rated = (create(name).claims(public_of(clients=5, dropout=rate)) for rate in (0.0, 0.1))
    assert rated["epsilon_round_by_threat"]["server"] > whole["epsilon_round_by_threat"]["server"]
    assert rated["epsilon_round_exact"] == whole["epsilon_round_exact"]
    if name not in ("ddg", "skellam"):
        expected = gaussian_epsilon(gaussian_mu(3.0) / math.sqrt(4 / 2))
        assert rated["epsilon_round_by_threat"]["server"] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["cdp", "ldp", "mf"])
def test_noise_that_needs_nobody_else_costs_the_same(name: str) -> None:
    whole, rated = (create(name).claims(public_of(clients=5, dropout=rate)) for rate in (0.0, 0.3))
    assert rated == whole


def test_correlated_shares_refuse_clients_that_come_and_go() -> None:
    with pytest.raises(UserError, match=r"needs the same clients in every round.*given: dropout 0.1, late 0\.$"):
        create("ddp-mf").check(public_of(clients=5, dropout=0.1))


def test_every_other_defense_takes_missing_clients() -> None:
    for name in registry.entries("defense"):
        if name not in ("ddp-mf", "fedavg"):
            create(name).check(public_of(clients=5, dropout=0.1, late=0.1))


def test_a_late_update_is_held_by_the_server_and_opens_only_without_a_defense() -> None:
    """Secure aggregation gives away the mask key of a client that was late. Its own seed still hides its update."""
    plain, masked = small_run(create("fedsgd"), **MISSING), small_run(create("secagg"), **MISSING)
    assert isinstance(masked.defense, SecureSum)
    pairs = zip(masked.rounds(), plain.rounds(), strict=True)
    at, open_ = next(pair for pair in pairs if len(late_in(pair[0])) == 1 and "aggregate" in pair[0].states[SERVER])
    (name,) = late_in(at)
    assert name in plain.defense.read(open_, plain.public).gradients
    of_server = replace(at, states={SERVER: at.states[SERVER]})
    assert set(masked.defense.read(of_server, masked.public).gradients) == {AGGREGATE}
    (message,) = [m for m in at.messages if m.kind == "update" and m.sender == name]
    own, true = at.states[name]["round"], sent_codes(masked, at)[name].astype(np.uint64)
    near = {other: own["keys"][other] for other in own["shares"]}
    keyed = _without_masks(message, at.context, bytes(32), own["mask"], near) + _words(bytes(32), len(true))
    assert not bool((keyed == true).any())
    assert bool((_without_masks(message, at.context, own["seed"], own["mask"], near) == true).all())


@pytest.mark.parametrize("name", ["secagg", "tp-smc", "pile", "hybridalpha", "mp-dp+"])
def test_a_colluder_takes_its_update_out_of_a_sum_in_time_and_leaves_late_ones_alone(name: str) -> None:
    """In every round that is opened; some have a late update of another client."""
    run, plain = small_run(quiet(name), **MISSING), small_run(quiet("secagg"), **MISSING)
    defense, late = run.defense, [late_in(at) for at in plain.rounds()]
    assert isinstance(defense, SummedCodes)
    mixed = 0
    for at, of_colluder, without in zip(run.rounds(), run.view("server+clients:1").of_kind("train"), late, strict=True):
        if "aggregate" not in at.states[SERVER]:
            continue
        codes = sent_codes(run, at)
        others = sorted(set(updates(at)) - without - {"client:1"})
        total: Integers = sum((codes[other] for other in others), start=np.zeros(1, dtype=np.int64))
        update = defense.decoded(run.public, at.context, total, len(others))
        expected = flat(defense.gradient_of(update, at.states[SERVER], run.public))
        left = defense.read(of_colluder, run.public).gradients[AGGREGATE]
        opened, count = defense.open_updates(of_colluder, run.public)[AGGREGATE]
        assert left.clients == count == len(others)
        assert relative(flat(left.values), expected) < 1e-6
        assert relative(flat(opened["gradient"]), flat(update["gradient"])) < 1e-6
        mixed += bool(without - {"client:1"}) and "client:1" in set(updates(at)) - without
    assert mixed


def test_a_late_victim_trained_and_a_missing_one_did_not() -> None:
    seen = ObservedRounds(rounds=("first", "middle", "last"), targets=1)
    for seed in range(6):
        run = small_run(create("fedsgd"), seed=seed, observe=seen, **{**MISSING, "rounds": 3})
        sent = {at.context.round for at in run.rounds() if "client:0" in updates(at)}
        assert set(run.outcome.batches) == sent
        assert all("client:0" in updates(at) for at in run.rounds("probe"))  # probes have everybody


@pytest.mark.parametrize(
    ("training", "measured"),
    [
        ({}, False),
        ({"dropout": 0.01}, True),
        ({"late": 0.01}, True),
        ({"dropouts": (Dropout(client=1, round=0, step="update"),)}, True),
    ],
)
def test_missing_is_measured_only_where_somebody_can_be_missing(training: dict[str, Any], measured: bool) -> None:
    worst = small_run(create("fedsgd"), clients=5, **training).outcome.ledger.worst
    names = {"clients_missing", "most_missing", "rounds_lost"}
    assert names & worst.keys() == (names if measured else set())


@pytest.mark.parametrize("name", ["ddp", "mp-dp+", "ddg"])
def test_larger_shares_let_more_clients_be_missing(name: str) -> None:
    """K = 5, t = 3 and two may be missing: one share is certain besides two colluders. The budget is kept."""
    public = public_of(clients=5, dropout=0.1)
    found, known = (create(name, spare=spare).claims(public) for spare in (2, 1))
    assert found["epsilon_round_exact"] == pytest.approx(known["epsilon_round_exact"]) == pytest.approx(3.0)
    assert found["epsilon_round_by_threat"]["server"] < known["epsilon_round_by_threat"]["server"]
    if name != "ddg":
        assert found["epsilon_round_by_threat"]["server"] == pytest.approx(gaussian_epsilon(gaussian_mu(3.0) / 3**0.5))
    assert counted(small_run(create(name, spare=2), **MISSING)).count(3) > 0
    with pytest.raises(UserError, match=r"needs spare to be less than its 3 honest clients; given: 3\.$"):
        create(name, spare=3).check(public_of(clients=5))
