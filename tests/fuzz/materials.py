"""A run in no time: a real plan, a real tiny training, and consistent records made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leakboard.core.files import write_text
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan
from leakboard.leaderboard.planning.run_folder import save_run
from leakboard.leaderboard.publishing.submit import PUBLISHED_FILE
from leakboard.leaderboard.records.provenance import provenance
from leakboard.leaderboard.records.record import Record, ScoreRecord, key_of
from leakboard.suites.schema import load_suite
from tests.leaderboard.runs import write_suite
from tests.leaderboard.synthetic import audit, extraction, membership, reconstruction, summary


def tiny_plan(folder: Path) -> Plan:
    """The plan of the tiny suite. Its run folder does not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    return make_plan(load_suite(str(write_suite(folder))), Options(run=folder / "run"))


def record_of(job: Job) -> Record:
    """A record of a job as in a finished run, with scores that follow from its values."""
    assert job.cell is not None
    like = reconstruction() if job.cell.goal == "reconstruction" else membership()
    scores = like.scores if job.cell.goal == "reconstruction" else {**like.scores, "auc": ScoreRecord(value=1.0)}
    made = provenance("cpu", job.data_digest).model_copy(update={"dirty": False, "commit": "0" * 40})
    trained = summary("fedsgd", 0, 0.9, 0.95).model_copy(update={"key": job.training_key})
    mine = {"key": job.key, "ingredients": job.ingredients, "cell": job.cell, "scores": scores}
    return like.model_copy(update={**mine, "training": trained, "provenance": made})


def all_kinds(plan: Plan) -> list[dict[str, Any]]:
    """Records of every goal as JSON trees. Those of the plan are consistent; the others fill the tables."""
    extra = [
        extraction(),
        extraction("mp-dp"),
        audit("fedsgd"),
        audit("mp-dp"),
        membership("mp-dp"),
        reconstruction("mp-dp"),
    ]
    records = [record_of(job) for job in plan.cells] + extra
    return [json.loads(record.to_json()) for record in records]


def signed(record: dict[str, Any]) -> dict[str, Any]:
    """A changed record with ingredients and keys that fit the change, as a liar would make them."""
    try:
        cell, parts = record["cell"], record["ingredients"]
        parts["training"]["spec"] = cell["training"]
        parts["answer"]["cell"] = {name: value for name, value in cell.items() if name not in ("training", "decoys")}
        record["training"]["key"] = key_of(parts["training"])
        record["key"] = key_of(parts)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass  # this change cannot be signed
    return record


def publish(folder: Path, records: list[Any], **settings: Any) -> Path:
    """A folder of published records."""
    for old in folder.glob("*.json"):
        old.unlink()
    given = {"suite": "tiny", "control": "fedsgd", "utility_gate": 0.9, **settings}
    write_text(folder / PUBLISHED_FILE, json.dumps(given))
    for number, record in enumerate(records):
        write_text(folder / f"{number}.json", json.dumps(record))
    return folder


def finished_run(plan: Plan) -> Path:
    """The folder of a finished run of this plan, with every record."""
    folder = Path(plan.cells[0].run)
    save_run(folder, plan, {})
    for job in plan.cells:
        write_text(job.record_file, record_of(job).to_json())
    return folder
