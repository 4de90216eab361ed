"""Published records: collected from a run, checked for consistency, and opened again."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.core.files import write_bytes, write_text
from leakboard.core.plugins import Settings
from leakboard.core.registry import ROOT
from leakboard.core.terminal import plain
from leakboard.leaderboard.page.images import in_8_bits, originals
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.run_folder import (
    MAX_RECORD_BYTES,
    RunFile,
    RunFolder,
    SuiteName,
    open_run,
    read_record_file,
    read_text,
)
from leakboard.leaderboard.publishing.changes import (
    CHANGES_FILE,
    Ranks,
    note_change,
    rank_changes,
    ranks_of,
    read_changes,
)
from leakboard.leaderboard.publishing.groups import (
    Group,
    group_of,
    lacking,
    not_published,
    planned_groups,
    refuse_disagreement,
    unfinished,
    words,
)
from leakboard.leaderboard.publishing.origins import PLUGINS, plugins_of, text_file, texts_of, uncommitted
from leakboard.leaderboard.publishing.replays import coming_replays, remove_unused, write_replays
from leakboard.leaderboard.publishing.shadow_pools import remove_unused_pools
from leakboard.leaderboard.publishing.verdicts import Badge, badge
from leakboard.leaderboard.ranking.evidence import auc
from leakboard.leaderboard.ranking.silence import BROKEN
from leakboard.leaderboard.records.known import known_metric
from leakboard.leaderboard.records.record import PRIOR, CellSpec, Record, key_of
from leakboard.leaderboard.records.validation import places, sound, unsound

PUBLISHED = ROOT / "leaderboard" / "published"
PUBLISHED_FILE = "published.json"
#: a web address, or a path that begins at the root or at a home folder
_PATH = re.compile(
    r"(?P<address>\b(?!file:)\w+://[^\s'\"]+)"
    r"|(?:\bfile://|(?<![\w./~]))~?(?:/[^\s/'\":;,()<>]+)*/(?P<last>[^\s/'\":;,()<>]+)/?"
)
#: a warning about a whole board; it is shown before everything else until the board is replaced
NOTE_FILE, LONGEST_NOTE = "NOTE.md", 4000
#: images of one record that are published: those of larger batches take megabytes
MOST_IMAGES = 256


class PublishedFile(Settings):
    """`published.json`: the settings that are needed to rank published records again."""

    suite: SuiteName
    description: str = ""
    control: str
    utility_gate: float
    version: int = Field(1, ge=1, description="one more with every submission that changed a record")
    groups: list[Group] = Field(
        default_factory=list, description="data set, defense and seed of all groups of the suite, published or not"
    )


# --- collect ------------------------------------------------------------------------------------


def submit(folder: Path, to: Path, allow_dirty: bool = False) -> tuple[Path, int]:
    """Copy the whole groups of a run to the board of its suite; returns the board's folder and the number of records.

    A group is one defense at one seed. A board that is there already grows: its other groups stay, and so does a record
    of the same key. Settings that differ from those of records that stay are refused before anything is written.

    Original images are never copied: records name dataset indices, and the guesses of `prior` (images of the data
    set, or their mean) are left out. So are the images of a record with more than `MOST_IMAGES`, for their size. For
    a sum over clients only the scored images are copied. Tracebacks are left out, because they name paths. The texts
    of plugins from outside the checkout are copied too. Older records of the same cells are removed from the
    published folder. What a replay of each training needs goes to `replays/`.
    """
    opened = open_run(folder)
    target = to / opened.file.suite
    old = open_any(target) if (target / PUBLISHED_FILE).is_file() else None
    pairs = _coming(opened, old)
    known = frozenset(r.training.key for r in (old.records if old is not None else ()) if r.training is not None)
    for _, record in pairs:
        _refuse_problems(record, allow_dirty, known)
    texts = [_for_others(record, folder) for _, record in pairs]
    plugins = {digest: text for job, record in pairs for digest, text in texts_of(record, job.plugin_files).items()}
    for content in plugins.values():
        _refuse_places(content.decode(errors="replace"), "A plugin", folder)
    replays = coming_replays(target, (job for job, _ in _whole(opened)))
    file, before = _file(opened, old, changed=bool(pairs)), _ranks(old)
    write_replays(target, replays)
    for (job, record), text in zip(pairs, texts, strict=True):
        if record.reconstructions and not _without_images(record):
            pictures = _pictures(folder / "records" / record.reconstructions, originals(record, job))
            write_bytes(target / record.reconstructions, pictures)
        write_text(target / job.record_file.name, text)
    for digest, content in plugins.items():
        write_bytes(text_file(target, digest), content)
    write_text(target / PUBLISHED_FILE, file.model_dump_json(indent=1) + "\n")
    if pairs:
        make_way(target, {job.record_file.name: record for job, record in pairs})
        ranks = rank_changes(before, _ranks(open_any(target)))
        note_change(target, file.version, {group_of(record.cell) for _, record in pairs}, len(pairs), ranks)
    return target, len(pairs)


def _coming(opened: RunFolder, old: RunFolder | None) -> list[tuple[Job, Record]]:
    """The cells of the run's whole groups that the board does not have yet; UserError if they do not fit it."""
    pairs = _whole(opened)
    if not pairs:
        raise UserError(
            f"No defense of {opened.folder} has all cells of a seed: {len(opened.waiting)} of {len(opened.jobs)} cells "
            "are not there yet: finish the run first."
        )
    if old is None:
        return pairs
    cells = {record.cell.slug for _, record in pairs}
    staying = [record for record in old.records if record.cell.slug not in cells]
    if staying:
        refuse_disagreement(staying, [record for _, record in pairs], old.file.suite)
        _refuse_other_rules(opened, old)
    _refuse_gaps(old, [*staying, *(record for _, record in pairs)])
    known = {record.key: record for record in old.records}
    return [(job, new) for job, new in pairs if job.key not in known or _better(new, known[job.key])]


def _whole(opened: RunFolder) -> list[tuple[Job, Record]]:
    """The cells of the groups of which nothing is missing, with their records."""
    left, there = unfinished(opened), {record.key: record for record in opened.records}
    whole = [j for j in opened.jobs if j.cell is not None and group_of(j.cell) not in left and j.key in there]
    return [(job, there[job.key]) for job in whole]


def _better(new: Record, old: Record) -> bool:
    """Whether a record of the same key replaces the published one: only where that one has no answer."""
    return old.status in BROKEN and new.status not in BROKEN


def _refuse_other_rules(opened: RunFolder, old: RunFolder) -> None:
    for name in ("control", "utility_gate"):
        mine, theirs = getattr(opened.file, name), getattr(old.file, name)
        if mine != theirs:
            raise UserError(
                f"The records do not fit the board {old.file.suite}: its {name} is {theirs}, this run's is {mine}."
            )


def _refuse_gaps(old: RunFolder, after: Sequence[Record]) -> None:
    """Refuse what would leave groups without an attack that others have: they could not be ranked any more."""
    known = {cell.slug for cell in old.waiting}
    gaps = [cell for cell in lacking(after) if cell.slug not in known]
    if gaps:
        attacks = ", ".join(dict.fromkeys(cell.attack.label for cell in gaps))
        raise UserError(
            f"The records do not fit the board {old.file.suite}: an attack must be run on all of its groups; "
            f"{attacks} would be missing for {words(dict.fromkeys(map(group_of, gaps)))}."
        )


def _file(opened: RunFolder, old: RunFolder | None, *, changed: bool) -> PublishedFile:
    """What `published.json` says after this submission."""
    given: dict[str, Any] = opened.file.model_dump(include={"suite", "description", "control", "utility_gate"})
    before = old.published if isinstance(old, Published) else None
    version = 1 if before is None else before.version + changed
    groups = dict.fromkeys([*(before.groups if before is not None else ()), *planned_groups(opened)])
    return PublishedFile(**given, version=version, groups=list(groups))


def _ranks(board: RunFolder | None) -> Ranks:
    return {} if board is None else ranks_of(board.records, board.file.control, board.file.utility_gate, board.waiting)


def _without_images(record: Record) -> bool:
    """Whether the images stay here: those of `prior` come from the data set itself, others are too many."""
    return record.cell.attack.name == PRIOR or len(record.target_indices) > MOST_IMAGES


def _pictures(path: Path, truth: Tensor | None) -> bytes:
    try:
        return in_8_bits(path, truth)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:  # torch raises RuntimeError
        raise UserError(f"The reconstructions {path} cannot be read: {error}.") from None


def without_paths(record: Record) -> Record:
    """The record without its traceback. Paths in reasons and flags are reduced to their last part."""
    scores = {n: s.model_copy(update={"reason": _bare(s.reason)}) for n, s in record.scores.items()}
    said = {"reason": _bare(record.reason), "flags": [_bare(flag) for flag in record.flags], "scores": scores}
    return record.model_copy(update={"traceback": "", **said})


def _bare(text: str) -> str:
    """The text with absolute paths reduced to their last part. Web addresses stay."""
    text = re.sub(re.escape(str(Path.home())) + r"(?![\w.-])", "~", text)  # the last part would be the user's name
    return _PATH.sub(lambda found: found["address"] or found["last"] or "", text)


def _for_others(record: Record, folder: Path) -> str:
    """The text of a record as it is published; refused if it still names a folder of this machine."""
    shown = record.model_copy(update={"reconstructions": ""}) if _without_images(record) else record
    text = without_paths(shown).to_json()
    _refuse_places(text, f"The record {record.cell.slug}", folder)
    return text


def _refuse_places(text: str, what: str, folder: Path) -> None:
    for place in (Path.home(), ROOT, folder.resolve()):
        if len(place.parts) > 1 and (str(place) in text or json.dumps(str(place))[1:-1] in text):
            raise UserError(
                f"{what} cannot be published: it names {place}, a folder of this machine; "
                "list parameters that name a location in the plugin's `location_fields`."
            )


def make_way(target: Path, fresh: Mapping[str, Record]) -> None:
    """Remove older records of the cells that were just published, with the files beside them.

    The folder's warning is removed when no older record is left.
    """
    cells = {record.cell.slug for record in fresh.values()}
    kept = {record.reconstructions for record in fresh.values()}
    for path in record_files(target):
        old = read_record_file(path) if path.name not in fresh else None
        if old is not None and old.cell.slug in cells:
            for gone in (path, path.with_suffix(".verified")):
                gone.unlink(missing_ok=True)
            if old.reconstructions and old.reconstructions not in kept:
                (target / Path(old.reconstructions).name).unlink(missing_ok=True)
    left = {path.name: read_record_file(path) for path in record_files(target)}
    if left.keys() <= fresh.keys():
        (target / NOTE_FILE).unlink(missing_ok=True)
    used = {text_file(target, digest) for record in left.values() for digest in plugins_of(record)}
    for text in set((target / PLUGINS).glob("*.py")) - used:
        text.unlink()
    trained = {record.training.key for record in left.values() if record.training is not None}
    remove_unused(target, trained)
    remove_unused_pools(target, trained)


def _refuse_problems(record: Record, allow_dirty: bool, trained: Container[str]) -> None:
    """Refuse a record that does not add up, or whose code nobody has; `trained` are published trainings."""
    found = list(problems(record))
    if not found and not allow_dirty:
        anyway = "(--allow-dirty publishes it anyway)"
        if record.provenance is not None and record.provenance.dirty is not False:
            found.append(f"it was made by code that is in no commit {anyway}")
        elif missing := uncommitted(record, training=record.training is None or record.training.key not in trained):
            found.append(f"{missing} {anyway}")
    if found:
        raise UserError(f"The record {record.cell.slug} cannot be published: {found[0]}.")


def problems(record: Record) -> Iterator[str]:
    """What is wrong with a record: its provenance, its key, or numbers that do not follow from its own values."""
    if record.provenance is None or not record.provenance.data_digest or not record.provenance.commit:
        yield "its provenance (commit, data) is missing"
    if record.key != key_of(record.ingredients):
        yield "its key is not the hash of its ingredients"
    yield from _stray_ingredients(record)
    yield from (f"it names a place on somebody's machine, {place}" for place in places(record))
    if Path(record.reconstructions).name != record.reconstructions:
        yield "its reconstructions lie in another folder"
    broken = list(unsound(record))
    yield from broken or _stray_numbers(record)


def _stray_ingredients(record: Record) -> Iterator[str]:
    parts: dict[str, Any] = record.ingredients
    cell, training = record.cell.model_dump(mode="json"), record.cell.training.model_dump(mode="json")
    made = parts.get("training") if isinstance(parts.get("training"), Mapping) else {}
    answer = parts.get("answer") if isinstance(parts.get("answer"), Mapping) else {}
    assert isinstance(made, Mapping)
    assert isinstance(answer, Mapping)
    asked = {name: value for name, value in cell.items() if name not in ("training", "decoys")}
    # newer fields are absent from older ingredients: only the stored ones must agree
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
        if known_metric(name).aggregate in ("mean", "share") and score.per_item and score.value is not None:
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
class Published(RunFolder):
    """A folder of published records. It opens like a run, without the run's own files."""

    published: PublishedFile

    @cached_property
    def _read(self) -> list[tuple[Path, Record]]:
        return [(path, read_record_file(path)) for path in record_files(self.folder)]

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """All records of the folder, by file name. UserError if no table can be made from them."""
        return sound(self._read, self.folder)

    @cached_property
    def waiting(self) -> tuple[CellSpec, ...]:
        """The cells that some groups have and others lack."""
        return lacking(self.records)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The groups of the suite that are not published yet."""
        return not_published(self.published.groups, self.records)

    @property
    def notes(self) -> tuple[str, ...]:
        """How many records have which badge."""
        badges = Counter(badge(path, record) for path, record in self._read)
        *always, needing = get_args(Badge)
        said = f"Records: {', '.join(f'{badges[name]} {name}' for name in always)}."
        changes = read_changes(self.folder)
        if changes:
            count = len(changes[-1].ranks)
            told = f"Version {self.published.version} of this board ({changes[-1].date})"
            said += f" {told}; {count} ranks changed with it: see {CHANGES_FILE}."
        if not badges[needing]:
            return (said, *self.remarks)
        text = f"{badges[needing]} records need plugins whose text is not here: verify needs --plugin FILE for them."
        return (said, text, *self.remarks)

    @property
    def warning(self) -> str:
        """The folder's warning, if it has one."""
        return read_note(self.folder)

    @property
    def records_folder(self) -> Path:
        """Records and reconstructions are in the same folder."""
        return self.folder

    @property
    def report_folder(self) -> Path:
        """The page is written below `runs`: nothing is written among published records."""
        return Path("runs") / f"published-{self.file.suite}" / "report"


def record_files(folder: Path) -> list[Path]:
    """The files of the records in a published folder."""
    return sorted(path for path in folder.glob("*.json") if path.name != PUBLISHED_FILE)


def open_any(folder: Path) -> RunFolder:
    """A run, or a folder of published records."""
    path = folder / PUBLISHED_FILE
    if not path.is_file():
        return open_run(folder)
    try:
        known = PublishedFile.model_validate_json(read_text(path, MAX_RECORD_BYTES))
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a list of published records: {type(error).__name__}.") from None
    given = known.model_dump(include={"suite", "description", "control", "utility_gate"})
    return Published(folder, RunFile(**given, jobs=[]), known)


def read_note(folder: Path) -> str:
    """The warning of a published folder about its own records; empty if there is none."""
    path = folder / NOTE_FILE
    try:
        text = read_text(path, LONGEST_NOTE) if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}.") from None
    return "\n".join(plain(line) for line in text.strip().splitlines())
