"""Whole runs: the same whatever the workers, nothing twice, and a change costs only what it touches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leakboard.leaderboard.planning.run_folder import open_run
from tests.leaderboard.plugin_texts import CONSTANT, SCALED
from tests.leaderboard.runs import TINY_CELLS, Outcome, call, comparable, records, stamps, write_suite


def test_the_number_of_workers_changes_no_record(tiny_suite: Path, tiny_run: Path, tmp_path: Path) -> None:
    outcome = call("run", "--suite", tiny_suite, "--out", tmp_path / "one", "--workers", 1)

    assert outcome.code == 0
    one, two = comparable(tmp_path / "one"), comparable(tiny_run)
    assert len(one) == TINY_CELLS
    assert one == two
    assert {record["status"] for record in one.values()} == {"ok"}


def test_a_second_run_computes_nothing(tiny_suite: Path, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_run, folder)
    patterns = ("records/*", "trainings/**/*", "logs/*")
    before = [stamps(folder, pattern) for pattern in patterns]

    outcome = call("run", "--suite", tiny_suite, "--out", folder, "--keep-transcripts")

    assert outcome.code == 0
    assert f"{TINY_CELLS} cells, {TINY_CELLS} already there" in outcome.began
    assert len(outcome.err.splitlines()) == 1  # no job was started
    assert all(before)
    assert [stamps(folder, pattern) for pattern in patterns] == before
    assert comparable(folder) == comparable(tiny_run)


class Workshop:
    """A suite with a defense and an attack of the user's own, run again after each change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_folder = folder / "run"
        self.attack, self.defense = folder / "constant.py", folder / "scaled.py"
        self.write_attack("1.0")
        self.write_defense("0.5")
        self.write_suite()

    def write_attack(self, value: str) -> None:
        self.attack.write_text(CONSTANT.replace("VALUE", value))

    def write_defense(self, factor: str) -> None:
        self.defense.write_text(SCALED.replace("FACTOR", factor))

    def write_suite(self, decoys: int = 99) -> None:
        prior = {"name": "prior", "threats": ["server"]}
        write_suite(self.folder, observe={"rounds": ["first"], "targets": 2}, attacks=[prior], decoys=decoys)

    def run(self) -> Outcome:
        suite = self.folder / "suite.yaml"
        plugins = ["--plugin", self.attack, self.defense]
        outcome = call(
            "run", "--suite", suite, "--out", self.run_folder, "--workers", 2, "--keep-transcripts", *plugins
        )
        assert outcome.code == 0, outcome.err
        return outcome

    def keys(self) -> dict[tuple[str, str], str]:
        found = records(self.run_folder).values()
        return {(r.cell.training.defense.label, r.cell.attack.label): r.key for r in found}

    def trainings(self) -> dict[str, int]:
        return stamps(self.run_folder, "trainings/*")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    workshop = Workshop(tmp_path_factory.mktemp("workshop"))
    workshop.run()
    return workshop


def changed(before: dict[tuple[str, str], str], after: dict[tuple[str, str], str]) -> set[tuple[str, str]]:
    assert set(before) == set(after)
    assert len(before) == 4
    return {cell for cell in before if before[cell] != after[cell]}


def test_a_changed_attack_recomputes_its_own_cells(workshop: Workshop) -> None:
    keys, trainings, files = workshop.keys(), workshop.trainings(), stamps(workshop.run_folder, "records/*")

    workshop.write_attack("-1.0")
    outcome = workshop.run()

    assert changed(keys, workshop.keys()) == {("fedsgd", "constant"), ("scaled", "constant")}
    assert "4 cells, 2 already there" in outcome.began
    assert workshop.trainings() == trainings
    now = stamps(workshop.run_folder, "records/*")
    assert {name: now[name] for name in files} == files  # what was there was not touched
    scores = {r.member_scores[0] for r in records(workshop.run_folder).values() if r.member_scores}
    assert scores == {-1.0}


def test_a_changed_defense_recomputes_its_training_and_cells(workshop: Workshop) -> None:
    keys, trainings = workshop.keys(), workshop.trainings()

    workshop.write_defense("0.25")
    outcome = workshop.run()

    assert changed(keys, workshop.keys()) == {("scaled", "prior"), ("scaled", "constant")}
    assert "4 cells, 2 already there" in outcome.began
    now = workshop.trainings()
    assert {name: now[name] for name in trainings} == trainings
    assert len(now) == len(trainings) + 1


def test_a_changed_score_runs_no_attack_again(workshop: Workshop) -> None:
    keys, trainings = workshop.keys(), workshop.trainings()
    answers = stamps(workshop.run_folder, "records/*.safetensors")
    costs = {name: record.cost for name, record in records(workshop.run_folder).items()}

    workshop.write_suite(decoys=9)
    workshop.run()

    assert len(changed(keys, workshop.keys())) == 4
    assert workshop.trainings() == trainings
    assert stamps(workshop.run_folder, "records/*.safetensors") == answers
    # the cost is that of the attack that was run, not of reading its answer
    assert {name: record.cost for name, record in records(workshop.run_folder).items()} == costs
    assert "records of older code" in open_run(workshop.run_folder).notes[0]


def test_going_back_finds_the_old_records_again(workshop: Workshop) -> None:
    workshop.write_attack("3.0")
    workshop.run()
    keys = workshop.keys()
    workshop.write_attack("4.0")
    workshop.run()

    workshop.write_attack("3.0")
    outcome = workshop.run()

    assert "4 cells, 4 already there" in outcome.began
    assert workshop.keys() == keys


def test_the_accuracy_is_looked_at_as_training_goes_on(tiny_run: Path) -> None:
    found = open_run(tiny_run).records
    assert len(found) == TINY_CELLS
    for record in found:
        assert record.training is not None
        assert record.training.accuracy_by_round[record.training.rounds] == record.training.accuracy
