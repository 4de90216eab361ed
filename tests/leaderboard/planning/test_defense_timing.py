"""Estimates by defense: its own work counts, and a defense that cannot be tried keeps the estimate of its gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.party import Party
from leakboard.federation.settings import ObservedRounds, Public
from leakboard.leaderboard.api.evaluate import prepare
from leakboard.leaderboard.planning import defense_timing, estimate
from leakboard.leaderboard.planning.defense_timing import Cost, try_rounds, with_defenses
from leakboard.leaderboard.planning.estimate import OVERHEAD
from leakboard.leaderboard.planning.plan import Plan
from tests.leaderboard.runs import write_suite

ATTACKS = [{"name": "prior", "threats": ["server"]}]
PLAN_ATTACKS = [*ATTACKS, {"name": "lira", "threats": ["client"], "params": {"models": 4, "mode": "offline"}}]


def plan_of(folder: Path, **changes: object) -> Plan:
    suite = write_suite(folder, **{"attacks": ATTACKS, **changes})
    return prepare(suite=suite, out=folder / "run").plan


def test_each_defense_costs_its_own_rounds_and_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path, attacks=PLAN_ATTACKS, defenses=["fedsgd", "clip", "ldp"], seeds=[0, 1])
    tried: list[str] = []

    def cost(defense: Defense, public: Public, observe: ObservedRounds) -> Cost:
        tried.append(defense.name)
        if defense.name == "ldp":
            raise Unsupported("not here")
        return {"fedsgd": Cost(0.0, 1.0, 0.5), "clip": Cost(100.0, 3.0, 0.25)}[defense.name]

    monkeypatch.setattr(defense_timing, "try_rounds", cost)
    found, untried = with_defenses(plan, {job.key or job.training_key: 7.0 for job in (*plan.trainings, *plan.cells)})
    # four rounds, and two probes in each of two observed rounds
    wanted = {"fedsgd": OVERHEAD + 4 + 4 * 0.5, "clip": OVERHEAD + 100 + 4 * 3 + 4 * 0.25, "ldp": 7.0}
    once = {"fedsgd": 0.0, "clip": 100.0, "ldp": 0.0}
    for job in plan.trainings:
        assert found[job.training_key] == wanted[job.training.defense.name], job.title
    for job in plan.cells:
        assert job.cell is not None
        name = job.training.defense.name
        shadows = 4 * 0.5 * (job.cell.attack.name == "lira")  # each learns from half of the records
        assert found[job.key] == 7.0 + shadows * (wanted[name] - once[name] - 7.0), job.title
    assert tried == ["fedsgd", "clip", "ldp"], "two seeds of one defense are tried once"
    assert untried == ["ldp"]


def test_what_is_done_once_is_no_part_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheme that takes 1,000 seconds to set up, 100 more in its first round, 10 in a round and 1 in a probe."""
    now = [0.0]
    monkeypatch.setattr("time.process_time", lambda: now[0])

    class Slow(FedSGD):
        def initialise(self, me: Party) -> None:
            now[0] += 1000
            super().initialise(me)

        def aggregate(self, me: Party) -> None:
            with me.phase("Agg"):
                now[0] += 1 if me.context.kind == "probe" else 110 if me.context.round == 0 else 10
            super().aggregate(me)

    plan = plan_of(tmp_path, observe={"rounds": ["first", "last"], "probe_batch": [1, 2], "targets": 8})
    (job,) = plan.trainings
    observe = ObservedRounds.of_record(job.training.observe)
    cost = try_rounds(Slow(), plan.publics[job.training_key], observe)
    assert cost == Cost(once=1100, round=10, probes=2)
    assert cost.training(4, observe) == 1100 + 4 * 10 + 2 * 8 * 2


def test_local_steps_cost_a_gradient_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "seconds_per_gradient", lambda public, batch: float(batch))
    local = {"local_steps": 6, "local_batches": 2, "local_learning_rate": 0.1}
    plan = plan_of(tmp_path, defenses=["fedavg"], control="fedavg", **{f"training__{k}": v for k, v in local.items()})
    (job,) = plan.trainings
    # three clients; four rounds on a batch of 4, that is 6 gradients of 2; four probes of one record, 6 gradients of 1
    assert estimate.estimate(plan)[job.training_key] == OVERHEAD + 3 * (4 * 6 * 2 + 4 * 6 * 1)


def test_matching_is_timed_by_its_own_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "seconds_per_gradient", lambda public, batch: 0.0)
    monkeypatch.setattr(estimate, "seconds_per_match", lambda public, batch: 1.0)
    matching = {"name": "inverting-gradients", "threats": ["server"], "params": {"iterations": 5}}
    plan = plan_of(tmp_path, attacks=[*ATTACKS, matching])
    found = estimate.estimate(plan)
    seconds = {job.cell.attack.name: found[job.key] for job in plan.cells if job.cell}
    assert seconds == {"prior": OVERHEAD, "inverting-gradients": OVERHEAD + 3 * 5 * 2}  # two problems


def test_an_iteration_of_matching_can_be_timed_through_batch_norm(tmp_path: Path) -> None:
    resnet = {"name": "resnet8", "params": {"norm": "batch", "bias": True}}
    plan = plan_of(tmp_path, model=resnet, training__loss="ce")
    (public,) = plan.publics.values()
    assert estimate.seconds_per_match(public, 2) > 0


@pytest.mark.parametrize("defense", ["fedsgd", "clip", "secagg", "mp-dp"])
def test_a_round_can_be_tried_and_leaves_nothing(defense: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, defenses=[defense], control=defense)
    (job,) = plan.trainings
    observe = ObservedRounds.of_record(job.training.observe)
    cost = try_rounds(job.make_defense(), plan.publics[job.training_key], observe)
    assert min(cost.round, cost.probes) > 0
    assert not (tmp_path / "run").exists()


def test_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path)
    (job,) = plan.trainings
    monkeypatch.setattr(defense_timing, "PATIENCE", 1e-6)
    observe = ObservedRounds.of_record(job.training.observe)
    with pytest.raises(TimeoutError):
        try_rounds(job.make_defense(), plan.publics[job.training_key], observe)
    assert with_defenses(plan, {job.training_key: 7.0}) == ({job.training_key: 7.0}, ["fedsgd"])
