"""Two runs cell by cell: scores are compared only between cells with the same settings, and differences are named.

The settings are everything that a record says about how its cell was made: training, observed rounds, model, data,
parameters of defense and attack, and the attacked targets. Different code and versions are named too, but such scores
are still compared: to see the effect of a code change is the purpose of a comparison.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from leakboard.core.seeds import digest_of, natural_order
from leakboard.leaderboard.records.record import CellSpec, Record
from leakboard.leaderboard.records.scope import all_targets
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

#: two cells are a pair if they agree in these; everything else in a cell is a setting
AXES: Mapping[str, Callable[[CellSpec], str]] = {
    "data sets": lambda cell: cell.training.dataset.label,
    "defenses": lambda cell: cell.training.defense.label,
    "attacks": lambda cell: cell.attack.label,
    "threats": lambda cell: cell.threat,
    "batch sizes": lambda cell: str(cell.batch_size),
    "observed rounds": lambda cell: cell.moment or "whole run",
    "seeds": lambda cell: str(cell.training.seed),
}
FOUND_BY = ("seed", "threat", "moment", "probe_batch", "observe.probe_batch")
#: longer values of a setting are cut to this many characters
LONGEST = 60
SAME, OTHER_CODE = "the same settings", "the same settings, other code"
SETTINGS, CODE, ONE_SIDED = "settings", "code and versions", "only in one of the runs"


@dataclass(frozen=True)
class Pair:
    """A cell that both runs have, with the differences in how it was made: name -> (A's value, B's value)."""

    slug: str
    one: Record
    two: Record

    @cached_property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """The settings that differ."""
        both_answered = self.one.status == self.two.status == "ok"
        return _unlike(*(settings_of(record, targets=both_answered) for record in (self.one, self.two)))

    @cached_property
    def code(self) -> dict[str, tuple[Any, Any]]:
        """The modules, versions and devices that differ."""
        return _unlike(code_of(self.one), code_of(self.two))

    def scores(self) -> dict[str, tuple[float | None, float | None]]:
        """Every score and the accuracy, for A and for B."""
        names = dict.fromkeys([*self.one.scores, *self.two.scores])
        found = {name: (_value(self.one, name), _value(self.two, name)) for name in names}
        return found | {"accuracy": (_accuracy(self.one), _accuracy(self.two))}


def comparison(first: Sequence[Record], second: Sequence[Record]) -> list[Table]:
    """The differences between two runs: settings, then scores at equal settings, then the other cells."""
    mine, other = ({record.cell.slug: record for record in records} for records in (first, second))
    pairs = [Pair(slug, mine[slug], other[slug]) for slug in mine if slug in other]
    alike = [pair for pair in pairs if not pair.settings]
    apart = [pair for pair in pairs if pair.settings]
    tables = [_differences(pairs, first, second), _side_by_side(alike, len(pairs), len(mine), len(other))]
    return [table for table in tables if table is not None] + ([_apart(apart)] if apart else [])


# --- what differs -------------------------------------------------------------------------------


def settings_of(record: Record, *, targets: bool = True) -> dict[str, Any]:
    """All settings of a cell by readable names: `training.rounds`, `observe.targets`, `attack.iterations`."""
    cell = record.cell.model_dump(mode="json")
    parts = {**cell.pop("training"), **cell}
    found = {name: value for name, value in _flat(parts) if name not in FOUND_BY and not name.endswith(".label")}
    if record.provenance is not None:
        found["data digest"] = record.provenance.data_digest[:12]
    if targets:
        found["number of targets"] = len(record.target_indices)
        found["which targets (digest)"] = digest_of("targets", record.target_indices)[:12]
    return found


def code_of(record: Record) -> dict[str, Any]:
    """The digests of the modules that made a record, the versions of libraries, and the device."""
    parts: dict[str, Any] = record.ingredients
    places = {
        "training": _mapping(_mapping(parts.get("training")).get("modules")),
        "attack": _mapping(_mapping(parts.get("answer")).get("modules")),
        "metrics": _mapping(parts.get("metrics")),
    }
    found = {module: str(digest)[:12] for modules in places.values() for module, digest in modules.items()}
    versions = _mapping(_mapping(parts.get("training")).get("versions"))
    device = _mapping(parts.get("training")).get("device")
    return {**found, **{f"version of {name}": value for name, value in versions.items()}, "device": device}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested settings. A plugin's kind holds its name and, below, its parameters."""
    for name, item in value.items():
        here = path if name in ("parameters", "name") and path else f"{path}.{name}" if path else name
        if isinstance(item, Mapping):
            yield from _flat(item, here)
        else:
            yield here, item


def _unlike(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*one, *two])
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def _text(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def _differences(pairs: Sequence[Pair], first: Sequence[Record], second: Sequence[Record]) -> Table | None:
    """Every setting, module and axis in which the runs differ; None if there is none."""
    columns = (
        Column("setting", "setting"),
        Column("a", "A"),
        Column("b", "B"),
        Column("cells", "cells", digits=0, help="number of common cells with this difference"),
    )
    counts: dict[tuple[str, str, str, str], int] = {}
    for pair in pairs:
        for section, found in ((SETTINGS, pair.settings), (CODE, pair.code)):
            for name, (a, b) in found.items():
                key = section, name, _text(a), _text(b)
                counts[key] = counts.get(key, 0) + 1
    rows = [
        Row({"setting": Cell(name), "a": Cell(a), "b": Cell(b), "cells": Cell(count)}, section)
        for (section, name, a, b), count in sorted(counts.items(), key=lambda item: item[0][0] == CODE)
    ]
    for name, axis in AXES.items():
        one, two = ({axis(record.cell) for record in records} for records in (first, second))
        if one != two:
            sides = (", ".join(natural_order(side)) or None for side in (one - two, two - one))
            rows.append(Row({"setting": Cell(name), **dict(zip("ab", map(Cell, sides), strict=True))}, ONE_SIDED))
    return Table("What differs between A and B", columns, tuple(rows)) if rows else None


# --- scores -------------------------------------------------------------------------------------


def _side_by_side(pairs: Sequence[Pair], common: int, mine: int, other: int) -> Table:
    """The scores that differ between cells with the same settings."""
    columns = (
        Column("cell", "cell"),
        Column("score", "score"),
        Column("a", "A", digits=4),
        Column("b", "B", digits=4),
        Column("difference", "B − A", digits=4),
        Column("over", "over", help="the targets behind both scores"),
    )
    rows = []
    for pair in pairs:
        section = OTHER_CODE if pair.code else SAME
        head = {"cell": Cell(pair.slug), "over": Cell(all_targets(pair.one) or None)}
        if pair.one.status != pair.two.status:
            told = {"score": Cell("status"), "a": Cell(pair.one.status), "b": Cell(pair.two.status)}
            rows.append(Row({**head, **told}, section))
        for name, (a, b) in pair.scores().items():
            if a != b:
                gap = Cell(b - a) if a is not None and b is not None else Cell(None)
                rows.append(Row({**head, "score": Cell(name), "a": Cell(a), "b": Cell(b), "difference": gap}, section))
    notes = [f"{common} cells are in both runs, {mine - common} only in A, {other - common} only in B."]
    if len(pairs) < common:
        notes.append(f"{common - len(pairs)} of the common cells have other settings in B: see the next table.")
    same = "Every score of every common cell is equal." if len(pairs) == common else "All scores are equal here."
    notes.append("Only differences are shown." if rows else same)
    return Table("Comparison of two runs: cells with the same settings", columns, tuple(rows), tuple(notes))


def _apart(pairs: Sequence[Pair]) -> Table:
    """The scores of cells whose settings differ: one row per run, with the settings that differ."""
    columns = (
        Column("cell", "cell"),
        Column("run", "run"),
        Column("settings", "where they differ"),
        Column("score", "score"),
        Column("value", "value", digits=4),
        Column("over", "over", help="the targets behind the score"),
    )
    rows = []
    for pair in pairs:
        for side, run, record in ((0, "A", pair.one), (1, "B", pair.two)):
            told = ", ".join(f"{name} {_text(values[side])}" for name, values in pair.settings.items())
            head = {"cell": Cell(pair.slug), "run": Cell(run), "settings": Cell(told)}
            head["over"] = Cell(all_targets(record) or None)
            if record.status != "ok":
                rows.append(Row({**head, "score": Cell("status"), "value": Cell(record.status, note=record.reason)}))
            scores = {name: values[side] for name, values in pair.scores().items() if values[side] is not None}
            rows += [Row({**head, "score": Cell(name), "value": Cell(value)}) for name, value in scores.items()]
    notes = ("The settings differ, so a difference of these scores says nothing about the code or the defense.",)
    return Table("Cells with different settings", columns, tuple(rows), notes)


def _value(record: Record, name: str) -> float | None:
    return record.scores[name].value if name in record.scores else None


def _accuracy(record: Record) -> float | None:
    return record.training.accuracy if record.training is not None else None
