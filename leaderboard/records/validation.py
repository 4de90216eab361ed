"""Whether records that somebody else may have written can be worked with; asked before any table is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.leaderboard.records.known import KnownGoal, goals, metrics
from leakboard.leaderboard.records.record import PluginSpec, Record, TrainingSummary

#: beyond these, sums of squares overflow and numpy's integers end
LARGEST_NUMBER, LARGEST_INTEGER = 1e150, 2**63 - 1
#: of a label and whatever else names a row, a column or a file: a figure's width follows from it
LONGEST_NAME = 200


def unsound(record: Record) -> Iterator[str]:
    """What no table could be made of: an unknown goal, numbers out of range, lists of different lengths."""
    goal = goals().get(record.cell.goal)
    if goal is None:
        yield f"its goal is none of {', '.join(goals())} (--plugin FILE.py loads another)"
    yield from _out_of_range(record)
    if len(record.members) != len(record.member_scores):
        yield "its targets, truth, scores and decisions are not equally many"
    may_repeat = goal is not None and goal.is_game
    if not may_repeat and len(set(record.target_indices)) < len(record.target_indices):
        yield "it names a target twice"
    if goal is not None and record.status == "ok":
        yield from _incomplete(record, goal)


def _incomplete(record: Record, goal: KnownGoal) -> Iterator[str]:
    """What the tables of a goal need of a record that has a score."""
    targets = len(record.target_indices)
    if goal.decides and not 0 < targets == len(record.members) == len(record.decisions):
        yield "its targets, truth, scores and decisions are not equally many"
    if targets % record.cell.batch_size:
        yield f"its {targets} targets are no whole batches of {record.cell.batch_size}"
    for name in goal.per_target:
        if name not in record.scores or not 0 < targets == len(record.scores[name].per_item):
            yield f"its {name} does not have one value per target"
    for name in goal.expected:
        if name not in record.scores:
            yield f"its {name} is missing: there must be a value, or the reason why there is none"


def _out_of_range(record: Record) -> Iterator[str]:
    cell, spec = record.cell, record.cell.training
    plugins = (spec.dataset, spec.model, spec.defense, cell.attack)
    names = [record.key, cell.threat, cell.moment or "", *(text for p in plugins for text in (p.label, p.name))]
    names += record.scores
    if any(len(name) > LONGEST_NAME for name in names):
        yield f"a name in it is longer than {LONGEST_NAME} characters"
    if not all(map(_is_moderate, _numbers(record.model_dump(mode="python")))):
        yield f"a number in it is beyond {LARGEST_NUMBER:g}, or a whole one beyond 63 bits"
    known = metrics()
    for name, score in record.scores.items():
        is_share = name in known and known[name].aggregate == "share"
        if is_share and not all(0 <= value <= 1 for value in score.per_item):
            yield f"its {name} has values that are no shares"
    if record.training is not None and not _consistent(record.training):
        yield "the test records that its model got right are not as many as its accuracy says"
    if record.training is not None and not _plausible(record.training):
        yield "its training has accuracies that are no shares, or counts below 0"


def _plausible(summary: TrainingSummary) -> bool:
    shares = (summary.accuracy, summary.train_accuracy, *summary.accuracy_by_round.values())
    counts = (summary.test_records, summary.train_records, summary.rounds, summary.client_rounds)
    between = summary.curve_records is None or 0 < summary.curve_records <= summary.test_records
    looked_at = summary.accuracy is None or summary.test_records > 0
    return looked_at and between and min(counts) >= 0 and all(share is None or 0 <= share <= 1 for share in shares)


def _consistent(summary: TrainingSummary) -> bool:
    """Whether the outcomes by test record, where there are any, give the stated accuracy."""
    hits, share = summary.outcomes(), summary.accuracy
    return not summary.test_correct or (bool(hits) and share is not None and abs(sum(hits) / len(hits) - share) < 1e-9)


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a tree of plain values, those that are keys included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(key)
            yield from _numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def _is_moderate(number: float) -> bool:
    return abs(number) <= (LARGEST_INTEGER if isinstance(number, int) else LARGEST_NUMBER)


def sound(found: Iterable[tuple[Path, Record]], folder: Path) -> tuple[Record, ...]:
    """Records of one folder, each of a cell of its own; one sentence where no table could be made of them."""
    by_cell: dict[str, Record] = {}
    keys: set[str] = set()
    for path, record in found:
        if broken := next(unsound(record), ""):
            raise UserError(f"{path.name} is broken: {broken}.")
        if record.cell.slug in by_cell or record.key in keys:
            raise UserError(f"{path.name} is a second record of its cell in {folder}: keep one of them.")
        by_cell[record.cell.slug] = record
        keys.add(record.key)
    return tuple(by_cell.values())


def places(record: Record) -> Iterator[str]:
    """Parameters of a record that say where something lies: ours have none, and nobody's file is opened or run by them.

    A model `module` would run the file that its `target` names, a data set would download into its `root`.
    """
    spec = record.cell.training
    for kind, plugin in (("dataset", spec.dataset), ("model", spec.model), ("defense", spec.defense)):
        yield from _places(kind, plugin)
    yield from _places("attack", record.cell.attack)


def _places(kind: str, plugin: PluginSpec) -> Iterator[str]:
    if ":" in plugin.name:
        yield f"the {kind} {plugin.name!r:.80}"
    elif plugin.name in registry.entries(kind):  # of any other nothing is loaded
        fields = registry.load(kind, plugin.name).location_fields
        yield from (f"{name!r} of the {kind} {plugin.name}" for name in fields if name in plugin.parameters)
