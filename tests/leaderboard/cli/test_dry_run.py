"""`run --dry-run` and suites that measure nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.leaderboard.api.evaluate import prepare
from tests.leaderboard.runs import call, write_suite

ATTACKS = [{"name": "prior", "threats": ["server", "client"]}]


def test_each_defense_has_its_jobs_and_what_is_there_is_not_counted(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, attacks=ATTACKS, defenses=["fedsgd", "clip"], observe__rounds=["first"])
    folder = tmp_path / "run"
    before = call("run", "--suite", suite, "--out", folder, "--workers", 1, "--dry-run").out.splitlines()
    assert before[0] == "Suite tiny: 2 trainings, 4 cells; 0 of 6 jobs are there already."
    assert not folder.exists()
    done = prepare("clip", suite=suite, out=folder).plan
    for job in (job for job in (*done.trainings, *done.cells) if job.training.defense.label == "clip"):
        if job.cell is None:
            job.training_folder.mkdir(parents=True)
        else:
            job.record_file.parent.mkdir(exist_ok=True)
            job.record_file.touch()
    after = call("run", "--suite", suite, "--out", folder, "--workers", 1, "--dry-run").out.splitlines()
    assert after[0] == "Suite tiny: 2 trainings, 4 cells; 3 of 6 jobs are there already."
    assert "clip: nothing to compute, 3 of 3 jobs are there" in after
    assert sum(line.endswith("(already there)") for line in after) == 3
    assert any(line.startswith("fedsgd: ") and line.endswith("to compute, 0 of 3 jobs are there") for line in after)


def test_a_cell_that_will_be_skipped_says_why(tmp_path: Path) -> None:
    attacks = [*ATTACKS, {"name": "inverting-gradients", "threats": ["client"]}]
    said = call("run", "--suite", write_suite(tmp_path, attacks=attacks), "--out", tmp_path / "run", "--dry-run").out
    assert "(will be skipped: the attack works under server" in said


@pytest.mark.parametrize(
    ("attack", "threat", "reason"),
    [
        ("inverting-gradients", "client", "inverting-gradients: the attack works under server, "),
        ("phi-inversion", "server", "clients of 'fedsgd' send no Phi"),
        ("adversarial-r", "server:active", "the defense fedsgd has no strategy of an active server on this network"),
    ],
)
def test_a_suite_that_can_only_be_skipped_is_refused(attack: str, threat: str, reason: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, attacks=[{"name": attack, "threats": [threat]}])
    outcome = call("run", "--suite", suite, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "Every cell of this run would be skipped" in outcome.err
    assert reason in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_whose_attacks_all_refuse_ends_with_1_and_says_why(tmp_path: Path) -> None:
    attacks = [{"name": "known-members", "threats": ["client"]}]  # the suite tells it no members
    suite = write_suite(tmp_path, attacks=attacks, observe__rounds=["first"])
    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--workers", 1)
    assert outcome.code == 1
    assert "No attack could run, every cell was skipped: known-members: " in outcome.err
