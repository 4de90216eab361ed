"""A server that deviates: a second training, on which only the cells of that threat hang, without utility."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan
from leakboard.leaderboard.publishing.verify import _suite_of
from leakboard.leaderboard.ranking.utility_gate import utility_of
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.phase_times import phase_tables
from leakboard.suites.schema import load_suite
from tests.leaderboard.runs import call, forget_plugins, records, write_suite
from tests.leaderboard.synthetic import membership

#: a server that can keep its first model for ever, which a client cannot see in one round
STUBBORN = """
from typing import ClassVar
from leakboard.defenses.base import Defense

class Stubborn(Defense):
    '''FedSGD whose server may refuse to learn.'''
    name: ClassVar[str] = "stubborn"
    learns: bool = True
    def step(self, me, gradient, buffers):
        if self.learns:
            super().step(me, gradient, buffers)
    def deviate(self):
        return self.model_copy(update={"learns": False})
"""
ATTACKS: list[dict[str, object]] = [
    {"name": "loss-threshold", "threats": ["server", "server:active"]},
    {"name": "received-model", "threats": ["client", "server:active"]},
]


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    forget_plugins()
    registry.load_file(str(path))
    yield path
    forget_plugins()


def plan_of(tmp_path: Path, plugin: Path, attacks: list[dict[str, object]]) -> Plan:
    suite = write_suite(tmp_path, defenses=["fedsgd", "stubborn"], attacks=attacks)
    return make_plan(load_suite(str(suite)), Options(run=tmp_path / "run", plugin_files=(str(plugin),)))


def kind(job: Job) -> tuple[str, bool]:
    return job.training.defense.label, job.training.active


def test_only_a_defense_that_can_deviate_is_trained_twice(tmp_path: Path, plugin: Path) -> None:
    plan = plan_of(tmp_path, plugin, ATTACKS)
    assert [kind(job) for job in plan.trainings] == [("fedsgd", False), ("stubborn", False), ("stubborn", True)]
    assert len({job.training_key for job in plan.trainings}) == 3
    assert plan.trainings[2].title.startswith("training digits / stubborn (deviating server)")
    hanging = {(*kind(job), job.cell.attack.label, job.cell.threat) for job in plan.cells if job.cell}
    active = {cell for cell in hanging if cell[1]}
    assert active == {("stubborn", True, "loss-threshold", "server:active")}
    assert {cell[0] for cell in hanging - active if cell[3] == "server:active"} == {"fedsgd", "stubborn"}
    assert all(job.cell.training == job.training for job in plan.cells if job.cell)
    assert {job.training_key for job in plan.cells} == {job.training_key for job in plan.trainings}


@pytest.mark.parametrize(("bias", "twice"), [(True, True), (False, False)])
def test_a_plain_model_is_imprinted_where_the_network_lets_it(tmp_path: Path, bias: bool, twice: bool) -> None:
    suite = write_suite(
        tmp_path,
        defenses=["fedsgd"],
        attacks=[{"name": "robbing-the-fed", "threats": ["server:active"]}, {"name": "prior", "threats": ["server"]}],
        model={"name": "mlp", "params": {"hidden": [16], "bias": bias}},
    )
    plan = make_plan(load_suite(str(suite)), Options(run=tmp_path / "run"))
    assert any(job.training.active for job in plan.trainings) == twice


@pytest.mark.parametrize(
    "attacks",
    [
        [{"name": "loss-threshold", "threats": ["server"]}],
        [{"name": "received-model", "threats": ["server:active"]}],  # an attack that knows no such threat
    ],
)
def test_where_nobody_asks_there_is_no_second_training(
    tmp_path: Path, plugin: Path, attacks: list[dict[str, object]]
) -> None:
    assert not any(job.training.active for job in plan_of(tmp_path, plugin, attacks).trainings)


def test_a_defense_without_a_strategy_cannot_be_made_to_deviate(tmp_path: Path, plugin: Path) -> None:
    job = plan_of(tmp_path, plugin, ATTACKS).trainings[0]
    spec = job.training.defense.model_copy(update={"name": "mp", "parameters": {}})
    forced = job.model_copy(update={"training": job.training.model_copy(update={"active": True, "defense": spec})})
    with pytest.raises(UserError, match="'mp' has no strategy of an active server"):
        forced.make_defense()


def test_a_run_with_an_active_server(tmp_path: Path, plugin: Path) -> None:
    suite = write_suite(
        tmp_path,
        defenses=["fedsgd", "stubborn"],
        attacks=[{"name": "loss-threshold", "threats": ["server", "server:active"]}],
        model={"name": "mlp", "params": {"hidden": [32]}},
        training={"rounds": 12, "batch_size": 16, "clients": 3, "learning_rate": 0.02},
        observe={"rounds": ["last"], "targets": 1},
    )
    folder = tmp_path / "run"
    outcome = call("run", "--suite", suite, "--out", folder, "--workers", 2, "--plugin", plugin)
    assert outcome.code == 0, outcome.err
    found = {(r.cell.training.defense.label, r.cell.threat): r for r in records(folder).values()}
    assert found["fedsgd", "server:active"].status == "skipped"
    assert "no strategy of an active server" in found["fedsgd", "server:active"].reason
    honest, active = found["stubborn", "server"], found["stubborn", "server:active"]
    assert (honest.status, active.status) == ("ok", "ok")
    assert (honest.cell.training.active, active.cell.training.active) == (False, True)
    assert honest.training is not None
    assert active.training is not None
    assert honest.training.accuracy == pytest.approx(found["fedsgd", "server"].training.accuracy)  # type: ignore[union-attr]
    assert active.training.accuracy != honest.training.accuracy  # it kept the first model

    opened = open_run(folder)
    for table in opened.tables():
        for row in table.rows:
            assert row.cells["accuracy"].value == pytest.approx(100 * (honest.training.accuracy or 0)), table.title
    registry.load_file(str(plugin))
    again = make_plan(_suite_of(active, ""), Options(run=tmp_path / "again", plugin_files=(str(plugin),)))
    assert active.cell in [job.cell for job in again.cells]  # verifying it runs the deviating server too
    first, last = (
        [
            o.messages[0].payload["model"]["1.weight"]
            for o in open_run(folder).view(threat, defense="stubborn").of_kind(k)
        ]
        for threat, k in (("server:active", "train"), ("server:active", "final"))
    )
    assert bool((first[0] == last[0]).all())
    with pytest.raises(UserError, match=r"No finished training .* fits threat 'server:active', defense 'fedsgd'"):
        open_run(folder).view("server:active", defense="fedsgd")


def deviating(record: Record) -> Record:
    """The same record, of a training whose server deviates."""
    assert record.training is not None
    training = record.cell.training.model_copy(update={"active": True})
    summary = record.training.model_copy(update={"key": "other"})
    cell = record.cell.model_copy(update={"training": training, "threat": "server:active"})
    return record.model_copy(update={"cell": cell, "training": summary, "key": "other"})


def test_neither_accuracy_nor_time_of_such_a_training_counts() -> None:
    honest = membership("x", accuracy=0.9)
    active = deviating(membership("x", accuracy=0.1))
    assert utility_of([honest, active], "x", 0.9).accuracy == {"x": 0.9}
    assert utility_of([active], "x", 0.9).accuracy == {}
    assert "not known" in utility_of([active], "x", 0.9).verdict("x")
    assert phase_tables([honest, active]) == phase_tables([honest])
