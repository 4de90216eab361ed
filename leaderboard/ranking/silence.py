"""Cells without a score, in words: a training that failed, an attack that gave no answer, a cell not computed yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.records.record import CellSpec, Record, Status

BROKEN: tuple[Status, ...] = ("failed", "timeout", "crashed")
#: so many groups of missing cells are named under a table
NAMED = 6


def failed_training(records: Iterable[Record]) -> str:
    """Why a defense's training failed, and at which seeds if not at all; nothing where none failed."""
    tried = list(records)
    failed = {r.cell.training.seed: r.reason for r in tried if r.status in BROKEN and r.training is None}
    if not failed:
        return ""
    reason = next(iter(failed.values())) or "its training failed"
    some = any(record.training is not None for record in tried)
    return f"{reason} (seed {', '.join(map(str, sorted(failed)))})" if some else reason


def diverged(records: Iterable[Record]) -> str:
    """That a defense's training diverged, and at which seeds; nothing where all models are finite."""
    seeds = {r.cell.training.seed for r in records if r.training is not None and r.training.diverged}
    told = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
    return f"its training diverged: the final model has values that are not finite ({told})" if seeds else ""


def unanswered(records: Iterable[Record], waiting: Sequence[CellSpec] = ()) -> str:
    """Why a defense's row is not complete: its training, its attacks, or cells to come; nothing where all answered.

    A reason is told where not a single attack gave an answer.
    """
    own = list(records)
    failed = failed_training(own)
    if failed:
        return failed
    if waiting:
        return f"not computed yet: {_names(cell.attack.label for cell in waiting)}"
    broken = [record for record in own if record.status in BROKEN]
    if not broken:
        return ""
    answered = any(record.status == "ok" for record in own)
    reason = next((record.reason for record in broken if record.reason), "")
    because = f": {reason}" if reason and not answered else ""
    return f"incomplete: {_names(record.cell.attack.label for record in broken)} gave no answer{because}"


def silent(names: Iterable[str], records: Sequence[Record], waiting: Sequence[CellSpec]) -> list[str]:
    """The defenses without a score (not in `names`) that were or will be attacked: they are shown, not ranked.

    A defense whose attacks were all skipped was not asked, and has no row.
    """
    known = set(names)
    asked = {r.cell.training.defense.label for r in records if r.status in BROKEN}
    asked |= {cell.training.defense.label for cell in waiting}
    return natural_order(asked - known)


def not_there_yet(waiting: Sequence[CellSpec], done: int) -> list[str]:
    """The note of a table of which cells are still to come: which attacks, on whom."""
    if not waiting:
        return []
    groups: dict[str, set[str]] = {}
    for cell in waiting:
        groups.setdefault(cell.attack.label, set()).add(cell.training.defense.label)
    told = [f"{attack} on {_names(defenses)}" for attack, defenses in groups.items()]
    more = f"; and {len(told) - NAMED} attacks more" if len(told) > NAMED else ""
    count = f"{len(waiting)} of {len(waiting) + done} cells of this table"
    return [f"The run is not finished: {count} are not computed yet: {'; '.join(told[:NAMED])}{more}."]


def _names(labels: Iterable[str]) -> str:
    return ", ".join(natural_order(set(labels)))
