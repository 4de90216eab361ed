"""Records that others can trust: collected from a run, checked for consistency, computed again and compared."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field, ValidationError

from core import registry
from core.errors import UserError
from core.files import write_bytes, write_text
from core.plugins import Settings
from core.registry import ROOT
from core.sources import source_digests
from leaderboard.engine import Engine
from leaderboard.executors.local import LocalExecutor
from leaderboard.plan import Options, Plan, make_plan
from leaderboard.ranking import auc
from leaderboard.record import PluginSpec, Provenance, Record, key_of
from leaderboard.store import Run, RunFile, open_run, read_record_file
from leaderboard.table import Cell, Column, Row, Table
from leaderboard.tables import GOALS
from suites.schema import Suite

PUBLISHED = ROOT / "leaderboard" / "published"
PUBLISHED_FILE = "published.json"
Badge = Literal["self-reported", "verified", "older code"]
#: how far a score computed again on another machine may be from the published one; metrics by their record's name
TOLERANCE = {
    "psnr": 1.0,
    "mse": 0.01,
    "test_mse": 0.2,
    "feat_mse": 0.1,
    "ssim": 0.05,
    "lpips": 0.05,
    "identified": 0.15,
    "identified_lpips": 0.15,
    "auc": 0.03,
    "asr": 0.05,
    "asr_best_threshold": 0.05,
    "tpr@1%fpr": 0.1,
    "tpr@0.1%fpr": 0.1,
    "fidelity": 0.03,
    "stolen_accuracy": 0.03,
    "canonical_distance": 0.05,
    "epsilon_lower": 0.7,
    "accuracy": 0.03,
}
#: metrics that are the mean of their values an item
MEANS = (
    "psnr",
    "mse",
    "test_mse",
    "feat_mse",
    "ssim",
    "lpips",
    "identified",
    "identified_lpips",
    "fidelity",
    "stolen_accuracy",
)


class PublishedFile(Settings):
    """`published.json`: what is needed to rank published records again."""

    suite: str
    description: str = ""
    control: str
    utility_gate: float


class Verification(Settings):
    """`<record>.verified`: that a record was computed again, by which code, and what came out."""

    record_digest: str = Field(description="SHA-256 of the record's file")
    provenance: Provenance
    compared: dict[str, tuple[float | None, float | None]] = Field(description="score -> published, computed again")


# --- collect ------------------------------------------------------------------------------------


def submit(folder: Path, to: Path, allow_dirty: bool = False) -> tuple[Path, int]:
    """Copy a finished run's records and reconstructions to where they are published; returns the folder and how many.

    No original image goes along: records name dataset indices. Tracebacks stay here, since they name paths. Records of
    the same cells that lie there already, of older code, make way for these.
    """
    opened = open_run(folder)
    missing = len(opened.jobs) - len(opened.records)
    if missing:
        raise UserError(f"{missing} of {len(opened.jobs)} cells of {folder} are not there yet: finish the run first.")
    for record in opened.records:
        _refuse_problems(record, allow_dirty)
    target = to / opened.file.suite
    given = opened.file.model_dump(include=set(PublishedFile.model_fields))
    write_text(target / PUBLISHED_FILE, PublishedFile.model_validate(given).model_dump_json(indent=1) + "\n")
    for job, record in zip(opened.jobs, opened.records, strict=True):
        if record.reconstructions:
            write_bytes(target / record.reconstructions, (folder / "records" / record.reconstructions).read_bytes())
        write_text(target / job.record_file.name, without_paths(record).to_json())
    make_way(target, {job.record_file.name: record for job, record in zip(opened.jobs, opened.records, strict=True)})
    return target, len(opened.records)


def without_paths(record: Record) -> Record:
    """The record without its traceback, and of every path that a reason or a flag names the last part alone."""

    def bare(text: str) -> str:
        return re.sub(r"(?<![\w.:/])~?(?:/[^\s/'\":;,()]+)+/([^\s/'\":;,()]*)", r"\1", text)

    scores = {n: s.model_copy(update={"reason": bare(s.reason)}) for n, s in record.scores.items()}
    said = {"reason": bare(record.reason), "flags": [bare(flag) for flag in record.flags], "scores": scores}
    return record.model_copy(update={"traceback": "", **said})


def make_way(target: Path, fresh: Mapping[str, Record]) -> None:
    """Remove the records of older code of the cells that were just published, and what lay beside them."""
    cells = {record.cell.slug for record in fresh.values()}
    kept = {record.reconstructions for record in fresh.values()}
    for path in record_files(target):
        old = read_record_file(path) if path.name not in fresh else None
        if old is not None and old.cell.slug in cells:
            for gone in (path, path.with_suffix(".verified")):
                gone.unlink(missing_ok=True)
            if old.reconstructions and old.reconstructions not in kept:
                (target / Path(old.reconstructions).name).unlink(missing_ok=True)


def _refuse_problems(record: Record, allow_dirty: bool) -> None:
    found = list(problems(record))
    if record.provenance is not None and record.provenance.dirty is not False and not allow_dirty:
        found.append("it was made by code that is in no commit (--allow-dirty publishes it all the same)")
    if found:
        raise UserError(f"The record {record.cell.slug} cannot be published: {found[0]}.")


def problems(record: Record) -> Iterator[str]:
    """What is wrong with a record as such: provenance, key, and numbers that do not follow from its own values."""
    if record.provenance is None or not record.provenance.data_digest or not record.provenance.commit:
        yield "its provenance (commit, data) is missing"
    if record.key != key_of(record.ingredients):
        yield "its key is not the hash of its ingredients"
    yield from _stray_ingredients(record)
    misshapen = list(_misshapen(record))
    yield from misshapen or _stray_numbers(record)


def _misshapen(record: Record) -> Iterator[str]:
    """What no table could be made of: another goal than ours, lists that are not equally long."""
    if record.cell.goal not in GOALS:
        yield f"its goal is none of {', '.join(GOALS)}"
    targets, truth, scores = (len(x) for x in (record.target_indices, record.members, record.member_scores))
    asked = record.cell.goal == "membership" and record.status == "ok"
    if truth != scores or (asked and not 0 < targets == truth == len(record.decisions)):
        yield "its targets, truth, scores and decisions are not equally many"
    if record.cell.goal == "reconstruction" and record.status == "ok":
        for name in ("psnr", "identified"):
            if name not in record.scores or not 0 < targets == len(record.scores[name].per_item):
                yield f"its {name} has not one value a target"
        if "lpips" not in record.scores:
            yield "its lpips is missing: there must be a value, or the reason why there is none"


def _stray_ingredients(record: Record) -> Iterator[str]:
    parts: dict[str, Any] = record.ingredients
    cell, training = record.cell.model_dump(mode="json"), record.cell.training.model_dump(mode="json")
    made = parts.get("training") if isinstance(parts.get("training"), Mapping) else {}
    answer = parts.get("answer") if isinstance(parts.get("answer"), Mapping) else {}
    assert isinstance(made, Mapping)
    assert isinstance(answer, Mapping)
    asked = {name: value for name, value in cell.items() if name not in ("training", "decoys")}
    # fields that were added since are absent from older ingredients: what is there must agree
    if not _agrees(made.get("spec"), training) or not _agrees(answer.get("cell"), asked):
        yield "its ingredients are those of another cell"
    if record.training is not None and record.training.key != key_of(dict(made)):
        yield "its training's key is not the hash of the training's ingredients"
    if record.provenance is not None and made.get("data") != record.provenance.data_digest:
        yield "its provenance names other data than its ingredients"


def _agrees(stored: object, now: Mapping[str, Any]) -> bool:
    return isinstance(stored, Mapping) and bool(stored) and all(now.get(name) == stored[name] for name in stored)


def _stray_numbers(record: Record) -> Iterator[str]:
    for name, score in record.scores.items():
        if name in MEANS and score.per_item and score.value is not None:
            mean = fmean(score.per_item)
            if abs(mean - score.value) > 1e-4 * max(1.0, abs(mean)):
                yield f"its {name} ({score.value:g}) is not the mean of its values ({mean:g})"
    stated = record.scores.get("auc")
    if stated is not None and stated.value is not None and record.member_scores:
        found = auc(np.asarray(record.member_scores, float), np.asarray(record.members, float))
        if abs(found - stated.value) > 1e-6:
            yield f"its auc ({stated.value:g}) does not follow from its scores ({found:g})"


# --- open ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published(Run):
    """A folder of published records; opens like a run, without the run's own files."""

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """All records of the folder, by file name; one sentence where no table could be made of them."""
        found: dict[str, Record] = {}
        keys: set[str] = set()
        for path in record_files(self.folder):
            record = read_record_file(path)
            if broken := next(_misshapen(record), ""):
                raise UserError(f"{path.name} is broken: {broken}.")
            if record.cell.slug in found or record.key in keys:
                raise UserError(f"{path.name} is a second record of its cell in {self.folder}: keep one of them.")
            found[record.cell.slug] = record
            keys.add(record.key)
        return tuple(found.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """How many records have which badge; those of older code are shown too."""
        badges = Counter(badge(path, read_record_file(path)) for path in record_files(self.folder))
        return (f"Of the records are {', '.join(f'{badges[name]} {name}' for name in get_args(Badge))}.",)

    @property
    def records_folder(self) -> Path:
        """Records and reconstructions lie side by side."""
        return self.folder

    @property
    def report_folder(self) -> Path:
        """The page goes to the runs: nothing is written among published records."""
        return Path("runs") / f"published-{self.file.suite}" / "report"


def record_files(folder: Path) -> list[Path]:
    """The records of a folder of published ones."""
    return sorted(path for path in folder.glob("*.json") if path.name != PUBLISHED_FILE)


def open_any(folder: Path) -> Run:
    """A run, or a folder of published records."""
    path = folder / PUBLISHED_FILE
    if not path.is_file():
        return open_run(folder)
    try:
        known = PublishedFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a list of published records: {type(error).__name__}.") from None
    return Published(folder, RunFile(**known.model_dump(), jobs=[]))


def badge(path: Path, record: Record) -> Badge:
    """What a published record may be called: computed again by us, by its sender alone, or by code that changed."""
    if _older(record):
        return "older code"
    try:
        known = Verification.model_validate_json(path.with_suffix(".verified").read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return "self-reported"
    return "verified" if known.record_digest == _digest(path) else "self-reported"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _older(record: Record) -> bool:
    """Whether any module that the record was made with says something else today."""
    parts: dict[str, Any] = record.ingredients
    stored = (parts.get("metrics"), _modules(parts.get("training")), _modules(parts.get("answer")))
    return any(_changed(name, digest) for place in stored for name, digest in (place or {}).items())


def _changed(module: str, digest: object) -> bool:
    return module.endswith(".py") or _today(module) != digest


@cache  # a folder has many records of the same modules
def _today(module: str) -> str | None:
    """The digest of a module as it is now; None where it is gone."""
    try:
        return source_digests([module])[module]
    except FileNotFoundError:
        return None


def _modules(part: Any) -> Any:
    return part.get("modules") if isinstance(part, Mapping) else None


# --- verify -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """A record beside the one that was computed again."""

    published: Record
    again: Record

    def rows(self) -> dict[str, tuple[float | None, float | None]]:
        """Every score, and the accuracy: published, computed again."""
        names = [*self.published.scores, *(n for n in self.again.scores if n not in self.published.scores)]
        found = {name: (_value(self.published, name), _value(self.again, name)) for name in names}
        found["accuracy"] = (_accuracy(self.published), _accuracy(self.again))
        return found

    def differences(self) -> list[str]:
        """What is farther off than the tolerance, in words."""
        found = []
        if self.published.status != self.again.status:
            found.append(f"status {self.published.status}, computed again: {self.again.status} {self.again.reason}")
        for name, (first, second) in self.rows().items():
            allowed = TOLERANCE.get(name, 0.05)
            if first is None and second is None:
                continue
            if first is None or second is None or abs(first - second) > allowed:
                found.append(f"{name} {_shown(first)}, computed again: {_shown(second)} (tolerance {allowed:g})")
        return found


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _value(record: Record, name: str) -> float | None:
    return record.scores[name].value if name in record.scores else None


def _accuracy(record: Record) -> float | None:
    return record.training.accuracy if record.training is not None else None


def verify(path: Path, data: str, lpips_weights: str, workers: int = 1) -> Verdict:
    """Compute a record's cell again, in a folder that is thrown away, and put both side by side."""
    record = read_record_file(path)
    found = list(problems(record))
    if found:
        raise UserError(f"{path.name} is broken: {found[0]}.")
    with tempfile.TemporaryDirectory() as folder:
        fresh = record.cell.training.keys == "fresh"
        options = Options(run=Path(folder) / "run", lpips_weights=lpips_weights, fresh_keys=fresh)
        plan = make_plan(_suite_of(record, data), options)
        wanted = [job for job in plan.cells if job.cell == record.cell]
        if not wanted:
            raise UserError(f"{path.name}: this code makes another cell of its settings; it cannot be verified.")
        stated = record.provenance.data_digest if record.provenance else ""
        if wanted[0].data_digest != stated:
            raise UserError(f"{path.name} was made on other data: its digest is {stated[:12]}…, here it is another.")
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
    attack |= {"known_labels": cell.known_labels, "about": cell.about}
    given = {
        "name": "verify",
        "datasets": [dataset],
        "model": entry(spec.model),
        "training": spec.training,
        "observe": spec.observe,
        "seeds": [spec.seed],
        "defenses": [entry(spec.defense)],
        "attacks": [attack],
        "control": spec.defense.label,
        "decoys": cell.decoys,
        "time_limit": 7 * 24 * 3600,
    }
    return Suite.parse(given, "The settings of the record")


def mark_verified(path: Path, verdict: Verdict) -> Path:
    """Note beside a published record that it was computed again."""
    assert verdict.again.provenance is not None
    note = Verification(record_digest=_digest(path), provenance=verdict.again.provenance, compared=verdict.rows())
    target = path.with_suffix(".verified")
    write_text(target, note.model_dump_json(indent=1) + "\n")
    return target


# --- compare ------------------------------------------------------------------------------------


def comparison(first: Sequence[Record], second: Sequence[Record]) -> Table:
    """Two runs cell by cell: what is in both, and every score that differs."""
    mine, other = ({record.cell.slug: record for record in records} for records in (first, second))
    columns = (
        Column("cell", "cell"),
        Column("score", "score"),
        Column("a", "A", digits=4),
        Column("b", "B", digits=4),
        Column("difference", "B − A", digits=4),
    )
    rows = []
    for slug in [slug for slug in mine if slug in other]:
        one, two = mine[slug], other[slug]
        if one.status != two.status:
            rows.append(
                Row({"cell": Cell(slug), "score": Cell("status"), "a": Cell(one.status), "b": Cell(two.status)})
            )
        for name, (a, b) in Verdict(one, two).rows().items():
            if a != b:
                gap = Cell(b - a) if a is not None and b is not None else Cell(None)
                cells = {"cell": Cell(slug), "score": Cell(name), "a": Cell(a), "b": Cell(b), "difference": gap}
                rows.append(Row(cells))
    both = sum(slug in other for slug in mine)
    notes = (
        f"{both} cells are in both; {len(mine) - both} only in A, {len(other) - both} only in B.",
        "Only what differs is shown." if rows else "Every score of every common cell is equal.",
    )
    return Table("Comparison of two runs", columns, tuple(rows), notes)
