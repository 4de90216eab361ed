"""Estimates by defense: its own work counts, and a defense that cannot be tried keeps the estimate of its gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense
from leakboard.federation.settings import Public
from leakboard.leaderboard.api.evaluate import prepare
from leakboard.leaderboard.planning import defense_timing
from leakboard.leaderboard.planning.defense_timing import round_seconds, with_defenses
from leakboard.leaderboard.planning.estimate import OVERHEAD
from tests.leaderboard.runs import write_suite

ATTACKS = [{"name": "prior", "threats": ["server"]}]


def test_each_defense_costs_its_own_rounds_and_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = write_suite(tmp_path, attacks=ATTACKS, defenses=["fedsgd", "clip", "ldp"], seeds=[0, 1])
    plan = prepare(suite=suite, out=tmp_path / "run").plan
    tried: list[str] = []

    def cost(defense: Defense, public: Public) -> float:
        tried.append(defense.name)
        if defense.name == "ldp":
            raise Unsupported("not here")
        return {"fedsgd": 1.0, "clip": 3.0}[defense.name]

    monkeypatch.setattr(defense_timing, "round_seconds", cost)
    given = {job.training_key: 7.0 for job in plan.trainings}
    found = with_defenses(plan, given)
    runs = 4 + 2 * 2  # rounds, and two probes in each of two observed rounds
    wanted = {"fedsgd": OVERHEAD + runs, "clip": OVERHEAD + 3 * runs, "ldp": 7.0}
    assert {job.title: found[job.training_key] for job in plan.trainings} == {
        job.title: wanted[job.training.defense.name] for job in plan.trainings
    }
    assert tried == ["fedsgd", "clip", "ldp"], "two seeds of one defense are tried once"


@pytest.mark.parametrize("defense", ["fedsgd", "clip", "secagg", "mp-dp"])
def test_a_round_can_be_tried_and_leaves_nothing(defense: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, attacks=ATTACKS, defenses=["fedsgd", defense][-1:], control=defense)
    plan = prepare(suite=suite, out=tmp_path / "run").plan
    (job,) = plan.trainings
    assert round_seconds(job.make_defense(), plan.publics[job.training_key]) > 0
    assert not (tmp_path / "run").exists()


def test_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = prepare(suite=write_suite(tmp_path, attacks=ATTACKS), out=tmp_path / "run").plan
    (job,) = plan.trainings
    monkeypatch.setattr(defense_timing, "PATIENCE", 1e-6)
    with pytest.raises(TimeoutError):
        round_seconds(job.make_defense(), plan.publics[job.training_key])
    assert with_defenses(plan, {job.training_key: 7.0}) == {job.training_key: 7.0}
