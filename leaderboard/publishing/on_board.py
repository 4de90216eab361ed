"""A plan on published trainings: a new attack on everything that a board has, without training.

The trainings keep the keys and the ingredients with which they were published. So a new record says which code trained,
and which attacked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.files import whole_folder, write_text
from leakboard.federation.observed import REPLAY_FOLDER
from leakboard.federation.settings import ObservedRounds
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Plan, cell_job
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.leaderboard.planning.whole_run import joined
from leakboard.leaderboard.publishing.groups import Group, group_of, words
from leakboard.leaderboard.publishing.replays import replay_folder, take_replay
from leakboard.leaderboard.publishing.submit import Published, problems
from leakboard.leaderboard.records.record import PluginSpec, Record, TrainingSpec, key_of
from leakboard.suites.schema import Suite


def entry_of(plugin: PluginSpec) -> dict[str, Any]:
    """A plugin of a record, as a suite names it."""
    return {"name": plugin.name, "label": plugin.label, "params": dict(plugin.parameters)}


def suite_of(board: Published, data: str = "") -> Suite:
    """The suite that plans all published cells: settings come from the records, so older boards have one too."""
    if not board.records:
        raise UserError(f"The board {board.file.suite} has no records.")
    first = board.records[0].cell
    datasets = {record.cell.training.dataset.label: record.cell.training.dataset for record in board.records}
    defenses: dict[str, dict[str, Any]] = {}
    attacks: dict[str, dict[str, Any]] = {}
    for record in board.records:
        cell, spec = record.cell, record.cell.training
        defenses[spec.defense.label] = {
            **entry_of(spec.defense),
            "model": entry_of(spec.model),
            "training": dict(spec.training),
        }
        told = {"known_labels": cell.known_labels, "known_members": cell.known_members}
        attack = attacks.setdefault(
            cell.attack.label,
            {**entry_of(cell.attack), **told, "about": cell.about, "pool_share": cell.pool_share, "threats": []},
        )
        attack["threats"] += [cell.threat] if cell.threat not in attack["threats"] else []
    given = {
        **board.file.model_dump(include={"description", "control", "utility_gate"}),
        "name": board.file.suite,
        "datasets": [located(spec, data) for spec in datasets.values()],
        "model": entry_of(first.training.model),
        "training": first.training.training,
        "observe": ObservedRounds.in_batches(first.training.observe),
        "seeds": sorted({record.cell.training.seed for record in board.records}),
        "defenses": list(defenses.values()),
        "attacks": list(attacks.values()),
        "decoys": first.decoys,
    }
    return Suite.parse(given, f"The settings of the board {board.file.suite}")


def located(spec: PluginSpec, data: str) -> dict[str, Any]:
    """The data set of a record; `NAME:PLACE` gives its location."""
    found = entry_of(spec)
    name, _, place = data.partition(":")
    if data:
        if name != spec.name:
            raise UserError(f"The record was made on the data set '{spec.name}'; --data names '{name}'.")
        shorthand = registry.load("dataset", name).shorthand
        if not shorthand:
            raise UserError(f"The data set '{name}' takes nothing after a colon; given: {data}.")
        found["params"][shorthand] = place
    return found


def refuse_unknown_defenses(board: Published, labels: Collection[str]) -> None:
    """Refuse defenses whose code is not here; `labels` are those that are asked for, or none for all."""
    known = registry.entries("defense")
    for spec in {r.cell.training.defense.label: r.cell.training.defense for r in board.records}.values():
        if spec.name not in known and (not labels or spec.label in labels):
            raise UserError(
                f"The defense '{spec.label}' of the board {board.file.suite} comes from a plugin: read its text in "
                f"{board.folder / 'plugins'} and give it with --plugin FILE, or name other defenses with --defense."
            )


# --- the plan -----------------------------------------------------------------------------------


def on_board(plan: Plan, board: Published, asked: Collection[str], suite: Suite) -> tuple[Plan, Plan]:
    """The plan on published trainings: what is to be computed, and all that the folder will show.

    `asked` are the labels of the attacks to run. Of all others the published records are shown beside.
    """
    trainings = _published_trainings(plan, board)
    by_spec = {_name(job.training): job for job in trainings}
    cells = [
        cell_job(by_spec[_name(j.training)], j.cell) for j in plan.cells if j.cell and _name(j.training) in by_spec
    ]
    shown = [record for record in board.records if record.cell.attack.label not in asked]
    kept = [_kept(by_spec[_name(r.cell.training)], r) for r in shown if _name(r.cell.training) in by_spec]
    there = {job.cell.slug for job in kept if job.cell}
    new = [job for job in cells if job.cell and job.cell.slug not in there]
    if not new:
        raise UserError("Nothing is left to compute: name an attack that the board does not have with --attack.")
    needed = {job.training_key for job in new}
    chosen = replace(plan, trainings=tuple(j for j in trainings if j.training_key in needed), cells=tuple(new))
    earlier = _earlier(Path(new[0].run), {job.cell.slug for job in (*kept, *new) if job.cell}, set(by_spec))
    whole = replace(plan, suite=joined(suite, plan.suite), trainings=tuple(trainings), cells=(*kept, *earlier, *new))
    return chosen, whole


def _published_trainings(plan: Plan, board: Published) -> list[Job]:
    """The planned trainings that are published, as they were published; UserError where one has no snapshot."""
    known = {_name(record.cell.training): record for record in board.records if record.training is not None}
    groups = {group_of(record.cell) for record in board.records}
    found, missing, others = [], dict[Group, None](), dict[Group, None]()
    for job in plan.trainings:
        record = known.get(_name(job.training))
        if record is None:
            spec = job.training
            others[Group(spec.dataset.label, spec.defense.label, spec.seed)] = None
            continue
        made = published_job(job, record, board.folder)
        if replay_folder(board.folder, made.training_key).is_dir():
            found.append(made)
        else:
            missing[group_of(record.cell)] = None
    if missing:
        left = "" if not found else "; leave them out with --defense and --seed"
        raise UserError(f"The board {board.file.suite} has no snapshots of: {words(missing)}{left}.")
    if lost := [group for group in others if group in groups]:
        raise UserError(
            f"The board {board.file.suite} has no training that this code and this attack need (such as one with a "
            f"deviating server) of: {words(lost)}."
        )
    return found


def published_job(job: Job, record: Record, board: Path) -> Job:
    """A planned training as it was published: with the key and the ingredients of its record."""
    ingredients: Any = record.ingredients.get("training")
    assert record.training is not None
    stated = record.provenance.data_digest if record.provenance else ""
    if job.data_digest != stated:
        raise UserError(
            f"The board was made on other data: {job.training.dataset.label} has the digest {stated[:12]}… there and "
            f"{job.data_digest[:12]}… here; `leakboard data get` gets the published data sets."
        )
    _refuse_broken(record)
    return job.model_copy(
        update={
            "training_key": record.training.key,
            "ingredients": dict(ingredients),
            "published": str(board.resolve()),
        }
    )


def _refuse_broken(record: Record) -> None:
    """Refuse a record that does not add up; its keys are hashes then, and may be names of files."""
    if fault := next(problems(record), ""):
        raise UserError(f"The record {record.cell.slug} is broken: {fault}.")


def _kept(training: Job, record: Record) -> Job:
    """The cell of a published record, which is not computed again."""
    _refuse_broken(record)
    answer: Any = record.ingredients["answer"]
    update = {"cell": record.cell, "key": record.key, "answer_key": key_of(answer), "ingredients": record.ingredients}
    return training.model_copy(update=update)


def _earlier(folder: Path, slugs: Collection[str], specs: Collection[str]) -> Iterator[Job]:
    """The cells of attacks that earlier commands ran in the same folder."""
    if (folder / "run.json").is_file():
        for job in open_run(folder).jobs:
            if job.cell and job.cell.slug not in slugs and _name(job.training) in specs and job.record_file.is_file():
                yield job


def _name(spec: TrainingSpec) -> str:
    return json.dumps(spec.model_dump(mode="json"), sort_keys=True)


# --- files --------------------------------------------------------------------------------------


def lay_out(whole: Plan, chosen: Plan, board: Published) -> None:
    """Put the snapshots of the trainings and the published records into the folder of a run; what is there stays."""
    records = {record.key: record for record in board.records}
    summaries = {r.training.key: r for r in board.records if r.training is not None}
    for job in chosen.trainings:
        if not job.training_folder.is_dir():
            lay_out_training(job, summaries[job.training_key], board.folder)
    for job in whole.cells:
        record = records.get(job.key)
        if record is not None and not job.record_file.is_file():
            write_text(job.record_file, record.to_json())
            picture = Path(record.reconstructions).name
            if picture and (board.folder / picture).is_file():
                shutil.copyfile(board.folder / picture, job.record_file.with_name(picture))


def lay_out_training(job: Job, record: Record, board: Path) -> None:
    """The folder of a published training, before its observed rounds were replayed: summary and snapshot."""
    assert record.training is not None
    with whole_folder(job.training_folder) as folder:
        (folder / "summary.json").write_text(json.dumps(record.training.model_dump(mode="json"), allow_nan=False))
        take_replay(board, job.training_key, folder / REPLAY_FOLDER)
