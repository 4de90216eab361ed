"""Computes a published record again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.federation.settings import ObservedRounds
from leakboard.leaderboard.engine.engine import Engine
from leakboard.leaderboard.engine.executors.local import LocalExecutor
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, cell_job, make_plan
from leakboard.leaderboard.planning.run_folder import read_record_file
from leakboard.leaderboard.publishing.on_board import entry_of, lay_out_training, located, published_job
from leakboard.leaderboard.publishing.origins import refuse_missing_plugins
from leakboard.leaderboard.publishing.replays import replay_folder
from leakboard.leaderboard.publishing.submit import problems, record_files
from leakboard.leaderboard.publishing.verdicts import Depth, Verdict
from leakboard.leaderboard.records.record import Record
from leakboard.suites.schema import Suite


def verify(
    path: Path,
    data: str,
    lpips_weights: str,
    plugins: Sequence[str] = (),
    workers: int = 1,
    depth: Depth = "training",
) -> Verdict:
    """Compute a record's cell again, in a temporary folder, and return both records.

    With the depth `attack`, the observed rounds are replayed from the published snapshot instead of trained.
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
        cell = wanted[0]
        (training,) = (job for job in plan.trainings if job.training_key == cell.training_key)
        if depth == "attack":
            training = _replayed(training, record, path)
            cell = cell_job(training, record.cell)
        only = replace(plan, cells=(cell,), trainings=(training,))
        Engine(only, LocalExecutor(workers, plan.suite.memory_limit), lambda engine, line: None).run()
        return Verdict(record, read_record_file(cell.record_file), depth)


def _replayed(training: Job, record: Record, path: Path) -> Job:
    """The training as it was published, laid out to be replayed."""
    board = path.parent
    made = published_job(training, record, board) if record.training is not None else None
    if made is None or not replay_folder(board, made.training_key).is_dir():
        raise UserError(f"{path.name} has no snapshot beside it: verify it with --depth training.")
    lay_out_training(made, record, board)
    return made


def _suite_of(record: Record, data: str) -> Suite:
    """The smallest suite that holds the record's cell."""
    cell, spec = record.cell, record.cell.training

    attack = {**entry_of(cell.attack), "threats": [cell.threat], "known_members": cell.known_members}
    attack |= {"known_labels": cell.known_labels, "about": cell.about, "pool_share": cell.pool_share}
    given = {
        "name": "verify",
        "datasets": [located(spec.dataset, data)],
        "model": entry_of(spec.model),
        "training": spec.training,
        "observe": ObservedRounds.in_batches(spec.observe),
        "seeds": [spec.seed],
        "defenses": [entry_of(spec.defense)],
        "attacks": [attack],
        "control": spec.defense.label,
        "decoys": cell.decoys,
        "time_limit": 7 * 24 * 3600,
    }
    return Suite.parse(given, "The settings of the record")


def one_per_training(board: Path) -> list[Path]:
    """The record of each published training whose attack was fastest: enough to replay or train all of them again."""
    fastest: dict[str, tuple[float, Path]] = {}
    for path in record_files(board):
        record = read_record_file(path)
        if record.status == "ok" and record.training is not None and record.cost is not None:
            found = (record.cost.wall_seconds, path)
            fastest[record.training.key] = min(found, fastest.get(record.training.key, found))
    if not fastest:
        raise UserError(f"There are no records to verify in {board}.")
    return sorted(path for _, path in fastest.values())
