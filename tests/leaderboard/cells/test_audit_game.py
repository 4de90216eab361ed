"""The audit's game in whole runs: real trials, neighbours that differ in one record, and bits that stay behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakboard.datasets.loading import load_pool
from leakboard.federation.settings import SERVER, VICTIM
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cells.question import facts_of
from leakboard.leaderboard.goals.audit import promised
from leakboard.leaderboard.goals.questions.audit_game import PORTION, bits_of, open_game
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.public_settings import splits_of
from tests.leaderboard.runs import call, records, stamps, write_suite

AUDIT: dict[str, Any] = {
    "training__rounds": 2,
    "observe": {"rounds": [], "probe_batch": 2},
    "defenses": ["fedsgd", "mp-dp"],
    "attacks": [
        {"name": "audit", "label": "view", "threats": ["server"], "params": {"part": "view", "trials": 60}},
        {"name": "audit", "label": "far", "threats": ["server"], "params": {"trials": 60, "neighbours": "farthest"}},
    ],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    outcome = call("run", "--suite", write_suite(folder, **AUDIT), "--out", folder / "run", "--workers", 2)
    assert outcome.code == 0, outcome.err
    return folder / "run"


def job_of(run: Path, defense: str, attack: str) -> Job:
    for job in open_run(run).jobs:
        assert job.cell is not None
        if (job.training.defense.label, job.cell.attack.label) == (defense, attack):
            return job
    raise AssertionError


def test_a_run_scores_the_bound_and_keeps_what_it_came_from(finished: Path) -> None:
    found = records(finished)
    assert len(found) == 4
    for record in found.values():
        assert record.status == "ok", record.reason
        assert record.cell.moment is None
        assert len(record.members) == len(record.member_scores) == 60 > PORTION
        assert record.budget == {"trials": 60}
        assert len(record.target_indices) == 3
        details = record.scores["epsilon_lower"].details
        assert details["trials"] == 60
        assert details.get("claimed") == (3.0 if record.cell.training.defense.label == "mp-dp" else None)
        if record.cell.attack.label == "view" or record.cell.training.defense.label == "fedsgd":
            assert record.scores["epsilon_lower"].value == details["ceiling"] > 1
    (board,) = open_run(finished).boards()
    assert {str(row.cells["defense"].value): row.cells["claimed"].value for row in board.table.rows} == {
        "fedsgd": None,
        "mp-dp": 3.0,
    }


def test_a_kept_answer_is_scored_again_without_a_new_game(finished: Path, tmp_path: Path) -> None:
    before, answers = records(finished), stamps(finished, "records/*.safetensors")
    for path in (finished / "records").glob("*.json"):
        path.unlink()
    assert call("run", "--suite", finished.parent / "suite.yaml", "--out", finished).code == 0
    assert stamps(finished, "records/*.safetensors") == answers
    after = records(finished)
    assert {name: record.comparable() for name, record in after.items()} == {
        name: record.comparable() for name, record in before.items()
    }


def test_every_trial_is_a_run_of_the_protocol_on_the_same_model_with_noise_of_its_own(finished: Path) -> None:
    job = job_of(finished, "mp-dp", "view")
    pool = load_pool(job.make_dataset())
    game = open_game(facts_of(job, pool))
    first, second = game.portions()
    trials = (*first.trials, *second.trials)
    assert [trial.context.probe for trial in trials] == list(range(60))
    models = [trial.states[SERVER]["distributed"]["1.weight"] for trial in trials]
    assert all(torch.equal(model, models[0]) for model in models)
    sent = [m.payload["gradient"]["1.weight"] for t in trials for m in t.messages if m.sender == VICTIM]
    assert len({value.numpy().tobytes() for value in sent}) == 60
    again = next(open_game(facts_of(job, pool)).portions())
    assert torch.equal(
        next(m for m in again.trials[7].messages if m.sender == VICTIM).payload["gradient"]["1.weight"], sent[7]
    )


def test_the_worlds_differ_in_one_record_and_the_view_holds_neither_batch_nor_bits(finished: Path) -> None:
    for attack in ("view", "far"):
        job = job_of(finished, "fedsgd", attack)
        pool = load_pool(job.make_dataset())
        splits = splits_of(job, pool)
        game = open_game(facts_of(job, pool))
        zero, one = game.worlds
        same = [torch.equal(a, b) for a, b in zip(zero.images, one.images, strict=True)]
        assert same == [False, True]
        batch = splits.shards[0].tolist()
        assert set(game.indices[1:-1].tolist()) <= set(batch)
        task = next(game.portions())
        assert set(task.trials[0].states) == {SERVER}
        assert not task.view.holdings
        assert not task.trials[0].oracle
        bits = bits_of(facts_of(job, pool))
        assert 15 < int(bits.sum()) < 45


def test_the_farthest_neighbours_are_farther_than_drawn_ones(finished: Path) -> None:
    distances = []
    for attack in ("view", "far"):
        job = job_of(finished, "fedsgd", attack)
        pool = load_pool(job.make_dataset())
        game = open_game(facts_of(job, pool))
        task = next(game.portions())
        updates = {
            bool(bit): next(m for m in trial.messages if m.sender == VICTIM).payload["gradient"]["1.weight"]
            for bit, trial in zip(bits_of(facts_of(job, pool)), task.trials, strict=False)
        }
        distances.append(float((updates[True] - updates[False]).norm()))
    assert distances[1] > distances[0]


def test_what_a_defense_promises_is_read_for_the_threat() -> None:
    claims = {"epsilon_claimed": 3.0, "delta": 1e-5, "epsilon_run_exact": 40.0}
    assert promised(claims, "server") == {"claimed": 3.0, "composed": 40.0, "delta": 1e-5}
    central = {**claims, "epsilon_against": ["client"]}
    assert promised(central, "server") == {}
    assert promised(central, "client")["claimed"] == 3.0
    whole = {**claims, "epsilon_per": "run", "epsilon_round_claimed": 0.2, "epsilon_round_exact": 0.3}
    assert promised(whole, "server") == {"claimed": 0.2, "round": 0.3, "composed": 40.0, "delta": 1e-5}
    by_threat = {**claims, "epsilon_round_by_threat": {"server": 1.5}, "epsilon_total_by_threat": {"server": 9.0}}
    assert promised(by_threat, "server") == {"claimed": 3.0, "round": 1.5, "composed": 9.0, "delta": 1e-5}
    assert promised({"dp_holds": False}, "server") == {}
