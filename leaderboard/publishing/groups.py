"""Groups of one data set, defense and seed: a board is built from whole ones, over days and by several people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from leakboard.core.errors import UserError
from leakboard.federation.settings import LOCAL
from leakboard.leaderboard.planning.run_folder import RunFolder
from leakboard.leaderboard.records.record import CellSpec, Record

#: a cell within its group: attack, goal, what it is about, threat, observed round, batch size, pool
Signature = tuple[str, str, str, str, str | None, int, float]


class Group(NamedTuple):
    """All cells of one defense at one seed."""

    dataset: str
    defense: str
    seed: int


def group_of(cell: CellSpec) -> Group:
    """The group that a cell belongs to."""
    return Group(cell.training.dataset.label, cell.training.defense.label, cell.training.seed)


def unfinished(opened: RunFolder) -> dict[Group, int]:
    """The groups of a run that are not whole, with the number of cells that are to come."""
    found: dict[Group, int] = {}
    for cell in opened.waiting:
        found[group_of(cell)] = found.get(group_of(cell), 0) + 1
    return found


def planned_groups(opened: RunFolder) -> list[Group]:
    """The groups of the whole suite, of which the run may hold a part; runs of older releases know their own alone."""
    suite: Any = opened.file.settings
    own = [group_of(job.cell) for job in opened.jobs if job.cell is not None]
    every = [
        Group(_title(data), _title(row), seed)
        for data in suite.get("datasets", ())
        for row in suite.get("defenses", ())
        for seed in row.get("seeds") or suite.get("seeds", ())
    ]
    return list(dict.fromkeys([*every, *own]))


def _title(entry: Any) -> str:
    return str(entry.get("label") or entry.get("name"))


def words(groups: Iterable[Group]) -> str:
    """Groups in words, the seeds of a defense together; the data set where there are several.

    >>> words([Group("digits", "pile", 1), Group("digits", "pile", 2), Group("digits", "tp-smc", 0)])
    'pile (seeds 1, 2), tp-smc (seed 0)'
    """
    given = list(groups)
    several = len({group.dataset for group in given}) > 1
    seeds: dict[str, list[int]] = {}
    for group in given:
        seeds.setdefault(f"{group.defense} on {group.dataset}" if several else group.defense, []).append(group.seed)
    told = ((name, sorted(found)) for name, found in seeds.items())
    return ", ".join(f"{name} (seed{'s' * (len(found) > 1)} {', '.join(map(str, found))})" for name, found in told)


def not_published(planned: Iterable[Group], records: Iterable[Record]) -> tuple[str, ...]:
    """One sentence that names the groups of the plan that a board does not have; none if it has all."""
    there = {group_of(record.cell) for record in records}
    missing = [group for group in planned if group not in there]
    return (f"This board is not complete. Not published yet: {words(missing)}.",) if missing else ()


def _signature(cell: CellSpec) -> Signature:
    moment, size = cell.moment, cell.batch_size
    return cell.attack.label, cell.goal, cell.about, cell.threat, moment, size, cell.pool_share


def lacking(records: Iterable[Record]) -> tuple[CellSpec, ...]:
    """The cells that other groups of a data set have and a group lacks: a row must not be ranked without them."""
    cells: dict[str, dict[Signature, CellSpec]] = {}
    groups: dict[Group, dict[Signature, CellSpec]] = {}
    for record in records:
        group, signature = group_of(record.cell), _signature(record.cell)
        cells.setdefault(group.dataset, {})[signature] = record.cell
        groups.setdefault(group, {})[signature] = record.cell
    found = []
    for group, own in groups.items():
        training = next(iter(own.values())).training
        others = cells[group.dataset]
        found += [others[s].model_copy(update={"training": training}) for s in others if s not in own]
    return tuple(found)


# --- do the records of a board agree? -----------------------------------------------------------


def refuse_disagreement(staying: Sequence[Record], coming: Sequence[Record], board: str) -> None:
    """Refuse records whose settings differ from those that stay on the board: a board has one setting per label."""
    known: dict[str, Any] = {}
    for record in staying:
        known |= dict(_settings(record))
    for record in coming:
        for name, value in _settings(record):
            if name in known and known[name] != value:
                raise UserError(
                    f"The records do not fit the board {board}: {name} is {_short(known[name])} there and "
                    f"{_short(value)} in this run; give the changed suite another name, or submit a run of all groups "
                    "that the board has."
                )


def _settings(record: Record) -> Iterator[tuple[str, Any]]:
    """Everything that must be the same for all records of a label, by readable names."""
    cell, spec = record.cell, record.cell.training
    of = f"of the defense '{spec.defense.label}'"
    yield from ((f"the parameter {name} {of}", value) for name, value in spec.defense.parameters.items())
    # settings of local steps are not stored where there are none: that must differ from any value
    training = {**dict.fromkeys(LOCAL, "not there"), **spec.training}
    yield from ((f"training.{name} {of}", value) for name, value in training.items())
    yield f"the plugin {of}", spec.defense.name
    yield f"the model {of}", [spec.model.name, spec.model.parameters]
    yield from ((f"observe.{name}", value) for name, value in spec.observe.items())
    yield f"the data set '{spec.dataset.label}'", [spec.dataset.name, spec.dataset.parameters]
    if record.provenance is not None:
        yield f"the digest of the data set '{spec.dataset.label}'", record.provenance.data_digest
    by = f"of the attack '{cell.attack.label}'"
    yield f"the plugin {by}", cell.attack.name
    yield from ((f"the parameter {name} {by}", value) for name, value in cell.attack.parameters.items())
    yield f"what is known to the attack '{cell.attack.label}'", [cell.known_labels, cell.known_members]
    yield "the number of decoys", cell.decoys


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
