"""What the folder of a run holds after a part of its suite was asked for: `run --attack X` adds to a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.suites.schema import Suite


def with_kept(chosen: Plan, suite: Suite, options: Options) -> Plan:
    """The plan of the whole folder: the chosen cells, and those of the rest of the suite that are there already.

    Only records of today's code and settings are kept, because their keys are planned anew. If an attack is in the
    folder for one row, its cells on the other rows belong to the run too: a row is not ranked by attacks that spared
    it.
    """
    both = joined(suite, chosen.suite)
    if not (options.run / "run.json").exists():
        return replace(chosen, suite=both)
    whole = _planned(joined(both, _earlier(options.run)), options) or _planned(both, options)
    if whole is None:
        return replace(chosen, suite=both)
    asked = {job.key for job in chosen.cells}
    there = [job for job in whole.cells if job.key in asked or job.record_file.exists()]
    rows, columns = {_row(job) for job in there}, {_column(job) for job in there}
    cells = tuple(job for job in whole.cells if _row(job) in rows and _column(job) in columns)
    needed = {job.training_key for job in cells}
    trainings = tuple(job for job in whole.trainings if job.training_key in needed)
    return replace(whole, trainings=trainings, cells=cells)


def forgotten_plugins(chosen: Plan, folder: Path) -> list[str]:
    """Files of plugins that the last command in this folder had and this one has not.

    Their rows and columns leave the tables: a run never loads a file that its command does not name.
    """
    try:
        earlier = {file for job in open_run(folder).jobs for file in job.plugin_files}
    except UserError:
        return []
    return sorted(earlier.difference(*(job.plugin_files for job in chosen.cells)))


def _planned(suite: Suite, options: Options) -> Plan | None:
    """The plan; None if a part of it cannot run, which is no reason to refuse the part that was asked for."""
    try:
        return make_plan(suite, options)
    except UserError:
        return None


def _earlier(folder: Path) -> Suite | None:
    """The suite that the folder was last run with: it names rows and attacks that earlier commands added."""
    try:
        return Suite.parse(open_run(folder).file.settings, "The settings of the run")
    except UserError:
        return None


def joined(suite: Suite, chosen: Suite | None) -> Suite:
    """The suite with all its rows, attacks and seeds, and those that the choice added."""
    if chosen is None:
        return suite
    titles = {entry.title for entry in (*suite.defenses, *suite.attacks)}
    return suite.model_copy(
        update={
            "defenses": (*suite.defenses, *(row for row in chosen.defenses if row.title not in titles)),
            "attacks": (*suite.attacks, *(column for column in chosen.attacks if column.title not in titles)),
            "seeds": tuple(dict.fromkeys((*suite.seeds, *chosen.seeds))),
        }
    )


def _row(job: Job) -> tuple[str, str, int]:
    return job.training.dataset.label, job.training.defense.label, job.training.seed


def _column(job: Job) -> str:
    assert job.cell is not None
    return job.cell.attack.label
