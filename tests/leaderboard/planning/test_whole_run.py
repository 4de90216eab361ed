"""Asking for a part of a suite adds to the folder's tables; it takes nothing out of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leakboard.leaderboard.api.evaluate import prepare
from leakboard.leaderboard.planning.run_folder import open_run, save_run
from leakboard.leaderboard.planning.whole_run import forgotten_plugins
from leakboard.leaderboard.publishing.groups import Group, planned_groups
from tests.leaderboard.runs import call, write_suite

ATTACKS = [
    {"name": "prior", "threats": ["server"]},
    {"name": "analytic", "threats": ["server"]},
    {"name": "loss-threshold", "threats": ["client"]},
]


def cells(plan_cells: object) -> set[tuple[str, str, int]]:
    return {(job.training.defense.label, job.cell.attack.label, job.training.seed) for job in plan_cells}  # type: ignore[attr-defined]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path, attacks=ATTACKS, defenses=["fedsgd", "clip"], observe__rounds=["first"])


def computed(suite: Path, folder: Path, **part: object) -> None:
    """As if this part had been run: its cells have records."""
    prepared = prepare(suite=suite, out=folder, **part)  # type: ignore[arg-type]
    save_run(folder, prepared.whole)
    for job in prepared.plan.cells:
        job.record_file.parent.mkdir(exist_ok=True)
        job.record_file.write_text("{}")


def test_in_a_new_folder_a_part_is_all_there_is(suite: Path, tmp_path: Path) -> None:
    prepared = prepare(attack="analytic", suite=suite, out=tmp_path / "run")
    assert prepared.whole.cells == prepared.plan.cells
    assert len(prepared.whole.suite.attacks) > len(prepared.plan.suite.attacks)  # a board must know what is missing
    assert cells(prepared.plan.cells) == {(d, a, 0) for d in ("fedsgd", "clip") for a in ("prior", "analytic")}


def test_a_part_adds_to_what_is_there(suite: Path, tmp_path: Path) -> None:
    computed(suite, tmp_path / "run")
    prepared = prepare(attack="loss-threshold", suite=suite, out=tmp_path / "run")
    assert cells(prepared.plan.cells) == {("fedsgd", "loss-threshold", 0), ("clip", "loss-threshold", 0)}
    every = {(d, a, 0) for d in ("fedsgd", "clip") for a in ("prior", "analytic", "loss-threshold")}
    assert cells(prepared.whole.cells) == every
    assert {job.training.defense.label for job in prepared.whole.trainings} == {"fedsgd", "clip"}


def test_a_seed_and_a_defense_that_the_suite_lacks_add_too(suite: Path, tmp_path: Path) -> None:
    computed(suite, tmp_path / "run", attack="prior")
    prepared = prepare("ldp", "prior", suite=suite, out=tmp_path / "run", seeds=7)
    assert cells(prepared.plan.cells) == {("fedsgd", "prior", 7), ("ldp", "prior", 7)}
    assert cells(prepared.whole.cells) == {
        ("fedsgd", "prior", 0),
        ("clip", "prior", 0),
        ("fedsgd", "prior", 7),
        ("ldp", "prior", 7),
    }


def test_a_row_that_an_attack_spared_still_waits_for_it(suite: Path, tmp_path: Path) -> None:
    computed(suite, tmp_path / "run", attack="prior")
    prepared = prepare("fedsgd", "analytic", suite=suite, out=tmp_path / "run")
    assert ("clip", "analytic", 0) not in cells(prepared.plan.cells)
    assert ("clip", "analytic", 0) in cells(prepared.whole.cells)  # without a record: the table says that it is missing
    assert not any(job.cell is not None and job.cell.goal == "membership" for job in prepared.whole.cells)


def test_a_part_of_the_suite_that_cannot_run_is_no_reason_to_refuse_the_rest(tmp_path: Path) -> None:
    impossible = {"name": "clip", "training": {"batch_size": 10**6}}
    suite = write_suite(tmp_path, attacks=ATTACKS, defenses=["fedsgd", impossible])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    prepared = prepare("fedsgd", suite=suite, out=tmp_path / "run")
    assert prepared.whole.cells == prepared.plan.cells


@pytest.mark.slow
def test_the_table_of_a_folder_is_not_narrowed(suite: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert call("run", "--suite", suite, "--out", folder, "--workers", 2).code == 0
    assert call("run", "--suite", suite, "--out", folder, "--attack", "loss-threshold").code == 0
    table = call("table", "--out", folder).out
    assert "Reconstruction, digits, threat server" in table
    assert "Membership, digits, threat client" in table


def test_a_row_that_an_earlier_command_added_stays(suite: Path, tmp_path: Path) -> None:
    computed(suite, tmp_path / "run", attack="prior")
    computed(suite, tmp_path / "run", defense="ldp", attack="prior")
    prepared = prepare("clip", "prior", suite=suite, out=tmp_path / "run")
    assert cells(prepared.whole.cells) == {(name, "prior", 0) for name in ("fedsgd", "clip", "ldp")}


def test_a_plugin_that_the_last_command_had_is_named(suite: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "own.py"
    plugin.write_text("# no plugin, but a file that the command named")
    computed(suite, tmp_path / "run")
    jobs = prepare(suite=suite, out=tmp_path / "run").plan
    cells = tuple(job.model_copy(update={"plugin_files": (*job.plugin_files, str(plugin))}) for job in jobs.cells)
    save_run(tmp_path / "run", replace(jobs, cells=cells))
    assert forgotten_plugins(jobs, tmp_path / "run") == [str(plugin)]
    assert forgotten_plugins(replace(jobs, cells=cells), tmp_path / "run") == []
    assert forgotten_plugins(jobs, tmp_path / "another") == []


def test_a_row_is_planned_at_its_own_seeds(tmp_path: Path) -> None:
    rows = ["fedsgd", {"name": "clip", "seeds": [0]}]
    suite = write_suite(tmp_path, attacks=ATTACKS[:1], defenses=rows, seeds=[0, 1], observe__rounds=["first"])
    prepared = prepare(suite=suite, out=tmp_path / "run")
    assert cells(prepared.plan.cells) == {("fedsgd", "prior", 0), ("fedsgd", "prior", 1), ("clip", "prior", 0)}
    save_run(tmp_path / "run", prepared.whole)
    assert set(planned_groups(open_run(tmp_path / "run"))) == {
        Group("digits", "fedsgd", 0),
        Group("digits", "fedsgd", 1),
        Group("digits", "clip", 0),
    }


def test_the_seeds_of_rows_change_no_key(tmp_path: Path) -> None:
    def keys(rows: list[object]) -> set[str]:
        suite = write_suite(tmp_path, attacks=ATTACKS[:1], defenses=rows, observe__rounds=["first"])
        return {job.key for job in prepare(suite=suite, out=tmp_path / "run").plan.cells}

    assert keys(["fedsgd", "clip"]) == keys(["fedsgd", {"name": "clip", "seeds": [0]}])
