"""Stolen models through the whole harness: asked by observed round, checked, kept, scored against the true model."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakboard.attacks.base import ExtractionAnswer, ExtractionTask
from leakboard.federation.payload import Parameters, raw_bytes
from leakboard.federation.task import task_of
from leakboard.leaderboard.cells.answer import load_answer, save_answer
from leakboard.leaderboard.cells.question import make_question
from leakboard.leaderboard.cells.train import load_model, load_public
from leakboard.leaderboard.goals.extraction import Extraction
from leakboard.leaderboard.goals.question import AttackFailed
from leakboard.leaderboard.planning.plan import select
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.leaderboard.records.record import Record
from leakboard.suites.schema import load_suite
from tests.federation.makings import public_of
from tests.leaderboard.runs import call, records, write_suite

TASK, GOAL = ExtractionTask("first", 0), Extraction()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extraction")
    suite = write_suite(
        folder,
        defenses=["fedsgd", "mp"],
        attacks=[{"name": "received-model", "threats": ["client", "server"]}],
        model={"name": "mlp", "params": {"hidden": [32]}},
        training={"rounds": 12, "batch_size": 16, "clients": 3, "learning_rate": 0.02},
    )
    outcome = call("run", "--suite", suite, "--out", folder / "run", "--workers", 2, "--keep-transcripts", charts=True)
    assert outcome.code == 0, outcome.err
    return folder / "run"


def record(folder: Path, defense: str, moment: str, threat: str = "client") -> Record:
    return next(
        r
        for r in records(folder).values()
        if (r.cell.training.defense.label, r.cell.moment, r.cell.threat) == (defense, moment, threat)
    )


@pytest.mark.parametrize("moment", ["first", "last"])
def test_the_control_gives_its_model_away_and_model_perturbation_does_not(run_folder: Path, moment: str) -> None:
    open_model, hidden = record(run_folder, "fedsgd", moment), record(run_folder, "mp", moment)
    assert open_model.status == hidden.status == "ok"
    assert open_model.scores["fidelity"].value == 1.0
    assert open_model.scores["canonical_distance"].value == 0.0
    assert set(open_model.scores["fidelity"].per_item) == {1.0}
    assert len(open_model.target_indices) == len(open_model.scores["stolen_accuracy"].per_item)
    assert open_model.training is not None
    assert len(open_model.target_indices) == open_model.training.test_records
    # the last layer's noise moves the classes; the hidden layers are the same but for their scale (SCHEMES 7(d))
    assert (hidden.scores["fidelity"].value or 0) < 0.9
    distances = hidden.scores["canonical_distance"].details
    assert distances["1.weight"] < 1e-5
    assert distances["3.weight"] > 0.1


def test_an_attack_under_a_threat_that_it_does_not_name_is_skipped(run_folder: Path) -> None:
    assert record(run_folder, "fedsgd", "first", "server").status == "skipped"


def test_the_errand_holds_nothing_of_a_hidden_model(run_folder: Path) -> None:
    for defense, known in (("fedsgd", True), ("mp", False)):
        job = next(
            job
            for job in open_run(run_folder).jobs
            if job.cell
            and (job.training.defense.label, job.cell.moment, job.cell.threat) == (defense, "last", "client")
        )
        parcel = pickle.dumps(make_question(job))
        true = load_model(job.training_folder, 11)
        assert all((raw_bytes(value)[:64] in parcel) == known for value in true.values())


def test_a_kept_answer_is_the_answer(run_folder: Path, tmp_path: Path) -> None:
    job = next(job for job in open_run(run_folder).jobs if job.training.defense.label == "mp")
    kept, cost = load_answer(GOAL, job.answer_file)
    assert isinstance(kept, ExtractionAnswer)
    again = replace(kept, flags=("stale",), diagnostics={"r": 0.5})
    save_answer(GOAL, tmp_path / "a.safetensors", again, cost)
    found, _ = load_answer(GOAL, tmp_path / "a.safetensors")
    assert isinstance(found, ExtractionAnswer)
    assert (found.flags, found.diagnostics) == (("stale",), {"r": 0.5})
    assert all(torch.equal(found.model[name], value) for name, value in kept.model.items())
    GOAL.accept(found, TASK, load_public(job.training_folder))


def test_tables_and_page_of_such_a_run_can_be_made(run_folder: Path) -> None:
    shown = call("table", "--out", run_folder, "--all")
    assert shown.code == 0, shown.err
    assert "fidelity" in shown.out
    assert (run_folder / "report" / "index.html").is_file()


def test_an_extraction_attack_joins_a_suite_under_the_threat_client(tmp_path: Path) -> None:
    suite = select(load_suite(str(write_suite(tmp_path))), [], ["received-model"], [])
    assert [(a.name, a.threats) for a in suite.attacks] == [("received-model", ("client",))]


# --- the form of an answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: [], "tensors by name"),
        (lambda m: {**m, "extra": torch.zeros(1)}, "missing or unknown"),
        (lambda m: dict(list(m.items())[1:]), "missing or unknown"),
        (lambda m: {name: value[:1] for name, value in m.items()}, "must be"),
        (lambda m: {name: value.long() for name, value in m.items()}, "must be"),
        (lambda m: {name: value.tolist() for name, value in m.items()}, "must be"),
        (lambda m: {name: value / 0 for name, value in m.items()}, "finite"),
    ],
)
def test_a_model_of_the_wrong_form_is_refused(change: Callable[[Parameters], Any], reason: str) -> None:
    public = public_of()
    good = task_of(public).initial(1)
    GOAL.accept(ExtractionAnswer(good), TASK, public)
    with pytest.raises(AttackFailed, match=reason):
        GOAL.accept(ExtractionAnswer(change(good)), TASK, public)
