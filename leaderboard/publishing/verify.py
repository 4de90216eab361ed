"""Computes a published record again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.federation.settings import ObservedRounds
from leakboard.leaderboard.engine.engine import Engine
from leakboard.leaderboard.engine.executors.local import LocalExecutor
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan
from leakboard.leaderboard.planning.run_folder import read_record_file
from leakboard.leaderboard.publishing.origins import refuse_missing_plugins
from leakboard.leaderboard.publishing.submit import Verdict, problems
from leakboard.leaderboard.records.record import PluginSpec, Record
from leakboard.suites.schema import Suite


def verify(path: Path, data: str, lpips_weights: str, plugins: Sequence[str] = (), workers: int = 1) -> Verdict:
    """Compute a record's cell again, in a temporary folder, and return both records.

    `plugins` are files that the user chose to run. A text beside a record never runs by itself.
    """
    record = read_record_file(path)
    found = list(problems(record))
    if found:
        raise UserError(f"{path.name} is broken: {found[0]}.")
    files = tuple(str(Path(file).resolve()) for file in (*registry.installed_files(), *plugins))
    refuse_missing_plugins(path, record, files)
    with tempfile.TemporaryDirectory() as folder:
        fresh = record.cell.training.keys == "fresh"
        options = Options(run=Path(folder) / "run", plugin_files=files, lpips_weights=lpips_weights, fresh_keys=fresh)
        plan = make_plan(_suite_of(record, data), options)
        wanted = [job for job in plan.cells if job.cell == record.cell]
        if not wanted:
            raise UserError(
                f"{path.name}: this code makes a different cell from its settings, so it cannot be verified."
            )
        stated = record.provenance.data_digest if record.provenance else ""
        if wanted[0].data_digest != stated:
            raise UserError(
                f"{path.name} was made on other data: its digest is {stated[:12]}…, the data here has another."
            )
        only = replace(plan, cells=tuple(wanted), trainings=_trainings(plan, wanted[0].training_key))
        Engine(only, LocalExecutor(workers, plan.suite.memory_limit), lambda engine, line: None).run()
        return Verdict(record, read_record_file(wanted[0].record_file))


def _trainings(plan: Plan, key: str) -> tuple[Any, ...]:
    return tuple(job for job in plan.trainings if job.training_key == key)


def _suite_of(record: Record, data: str) -> Suite:
    """The smallest suite that holds the record's cell."""
    cell, spec = record.cell, record.cell.training

    def entry(plugin: PluginSpec) -> dict[str, Any]:
        return {"name": plugin.name, "label": plugin.label, "params": dict(plugin.parameters)}

    dataset = entry(spec.dataset)
    name, _, place = data.partition(":")
    if data:
        if name != spec.dataset.name:
            raise UserError(f"The record was made on the data set '{spec.dataset.name}'; --data names '{name}'.")
        shorthand = registry.load("dataset", name).shorthand
        if not shorthand:
            raise UserError(f"The data set '{name}' takes nothing after a colon; given: {data}.")
        dataset["params"][shorthand] = place
    attack = {**entry(cell.attack), "threats": [cell.threat], "known_members": cell.known_members}
    attack |= {"known_labels": cell.known_labels, "about": cell.about, "pool_share": cell.pool_share}
    given = {
        "name": "verify",
        "datasets": [dataset],
        "model": entry(spec.model),
        "training": spec.training,
        "observe": ObservedRounds.in_batches(spec.observe),
        "seeds": [spec.seed],
        "defenses": [entry(spec.defense)],
        "attacks": [attack],
        "control": spec.defense.label,
        "decoys": cell.decoys,
        "time_limit": 7 * 24 * 3600,
    }
    return Suite.parse(given, "The settings of the record")
