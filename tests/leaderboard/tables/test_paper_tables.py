"""The paper's tables from records made by hand, and the paper's own figures beside them."""

from __future__ import annotations

from typing import Any

import pytest

from leakboard.leaderboard.records.record import Record, ScoreRecord
from leakboard.leaderboard.tables.paper_tables import paper_figures, paper_tables
from leakboard.leaderboard.tables.table import Row, Table
from tests.leaderboard.synthetic import membership, reconstruction

SECONDS = {"client/Train": 12.0, "server/Agg": 4.0, "dealer/Key_Gen": 2.0}


def placed(record: Record, *, dataset: str = "cifar10-subset", epochs: int | None = 2, **changed: Any) -> Record:
    """The record on another data set: 4 rounds of 5 clients, with these CPU seconds."""
    assert record.training is not None
    spec = record.cell.training
    update = {
        "dataset": spec.dataset.model_copy(update={"label": dataset}),
        "training": {"epochs": epochs, "batch_size": 8},
    }
    cell = record.cell.model_copy(update={"training": spec.model_copy(update=update)})
    summary = record.training.model_copy(update={"cpu_seconds": SECONDS, "client_rounds": 20, **changed})
    return record.model_copy(update={"cell": cell, "training": summary})


def scored(record: Record, **scores: float) -> Record:
    more = {name: ScoreRecord(value=value) for name, value in scores.items()}
    return record.model_copy(update={"scores": {**record.scores, **more}})


def table(tables: list[Table], beginning: str) -> Table:
    (found,) = (one for one in tables if one.title.startswith(beginning))
    return found


def row(found: Table, method: str, section: str) -> Row:
    (one,) = (r for r in found.rows if r.cells["method"].value == method and r.section.startswith(section))
    return one


def values(found: Table, method: str, section: str = "ours") -> dict[str, Any]:
    return {key: cell.value for key, cell in row(found, method, section).cells.items() if cell.value is not None}


def test_time_by_epoch_and_to_the_target() -> None:
    curve = {2: 0.5, 4: 0.66}
    tables = paper_tables([placed(reconstruction("fedsgd"), accuracy_by_round=curve)])

    found = values(table(tables, "Computational efficiency"), "fedsgd")

    # a round: server 4/4 + keys 2/4, a client 12/20; an epoch is 2 rounds; 65 % is reached after 4 rounds
    expected = {"server": 3.0, "client": 1.2, "epoch": 4.2, "to_target": 8.4}
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    printed = values(table(tables, "Computational efficiency"), "fedsgd", "the paper")
    assert printed == {"method": "fedsgd", "server": 0.05, "client": 1.32, "epoch": 1.37, "to_target": 65.68}


def test_a_target_that_was_not_reached_says_so() -> None:
    tables = paper_tables([placed(reconstruction("fedsgd"), accuracy_by_round={2: 0.5})], target=60)
    cell = row(table(tables, "Computational efficiency"), "fedsgd", "ours").cells["to_target"]
    assert cell.value is None
    assert cell.note == "60 % was not reached: at most 50.0 %"


def test_phases_stand_in_the_paper_s_columns() -> None:
    tables = paper_tables([placed(reconstruction("fedsgd"))])
    found = table(tables, "Seconds per epoch")
    expected = {"server/Agg": 2.0, "keys/Key_Gen": 1.0, "client/Train": 1.2, "total": 4.2}
    assert {k: v for k, v in values(found, "fedsgd").items() if k != "method"} == pytest.approx(expected)
    assert values(found, "pile", "the paper")["server/Grad_Dec"] == 2227.14


def test_the_plain_attack_at_the_control_s_worst_round_and_the_strongest_beside_it() -> None:
    plain = [
        placed(scored(reconstruction(name, "gifd", [low], moment=moment), test_mse=0.5, feat_mse=0.25))
        for name, low in (("fedsgd", 20.0), ("mp-dp", 9.0))
        for moment, low in (("first", low), ("last", low - 3))
    ]
    knowing = placed(reconstruction("mp-dp", "phi", [19.0], moment="last"))
    knowing = knowing.model_copy(update={"cell": knowing.cell.model_copy(update={"adaptive": True})})

    found = table(paper_tables([*plain, knowing]), "Reconstruction")

    ours = values(found, "mp-dp")
    assert (ours["psnr"], ours["test_mse"], ours["most"], ours["attack"]) == (9.0, 0.5, 19.0, "phi, server, last")
    assert values(found, "mp-dp", "the paper")["feat_mse"] == 4.13
    assert "gifd, first round" in found.notes[0]


def test_every_caption_names_the_batches() -> None:
    records = [
        *(placed(reconstruction("fedsgd", "gifd", [9.0], batch_size=size)) for size in (4, 2)),
        placed(scored(membership("fedsgd", "known-members"), asr=0.7)),
    ]
    tables = paper_tables(records)
    assert len(tables) == 4
    for found in tables:
        batches = "gradients of batches of 2" if found.title.startswith("Reconstruction") else "trained on batches of 8"
        assert found.title.endswith(f", cifar10-subset, K = 5, {batches}")


def test_membership_is_in_percent() -> None:
    records = [placed(scored(membership("fedsgd", "known-members"), asr=0.7, auc=0.8))]
    found = table(paper_tables(records), "Membership")
    assert values(found, "fedsgd")["asr"] == pytest.approx(70.0)
    assert values(found, "fedsgd")["most"] == pytest.approx(0.8)
    assert values(found, "fedsgd", "the paper")["asr"] == 72.01


def test_other_data_has_no_rows_of_the_paper() -> None:
    tables = paper_tables([placed(reconstruction("fedsgd"), dataset="digits", epochs=None)])
    assert all(row.section.startswith("ours") for found in tables for row in found.rows)
    assert "This suite counts rounds: an epoch here is one round." in tables[0].notes


def test_the_medical_table() -> None:
    records = [placed(reconstruction("fedsgd", psnr=[15.0]), dataset="breakhis-32")]
    found = table(paper_tables(records), "The medical case")
    assert values(found, "fedsgd")["psnr"] == 15.0
    assert values(found, "hybridalpha", "the paper")["epoch"] == 23377.67


def test_the_paper_s_figures_are_whole() -> None:
    figures = paper_figures()
    assert {name: len(rows) for name, rows in figures.items()} == {
        "efficiency": 20,
        "phases": 20,
        "reconstruction": 12,
        "membership": 10,
        "medical": 10,
    }
    assert {row["method"] for rows in figures.values() for row in rows} == {
        "fedsgd",
        "pile",
        "tp-smc",
        "hybridalpha",
        "mp-cdp",
        "mp-dp",
    }
