"""The table object that every format prints. What a cell says is decided here, not in a format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal, NamedTuple

from leakboard.leaderboard.tables.marks import SIGNS

Direction = Literal["higher", "lower"]
NOTHING = "–"
ARROWS: Mapping[Direction | None, str] = {"higher": " ↑", "lower": " ↓", None: ""}


def _finite(value: object, what: str) -> float | int:
    """A plain Python number. NumPy numbers are converted; NaN, infinities and truth values are refused."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"A cell's {what} must be a finite number, or None with a note; given: {value!r}.")
    return int(value) if isinstance(value, Integral) else float(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its values are in `unit`, and `direction` says which values are better."""

    key: str
    title: str
    unit: str = ""
    direction: Direction | None = None
    digits: int = 2
    help: str = ""
    #: values below one unit of the last digit are shown with this many significant digits instead
    significant: int | None = None

    @property
    def header(self) -> str:
        """The title with its unit and an arrow towards the better values.

        >>> Column("acc", "Accuracy", "%", "higher").header
        'Accuracy (%) ↑'
        """
        return self.title + (f" ({self.unit})" if self.unit else "") + ARROWS[self.direction]

    def number(self, value: float | int) -> str:
        """A number with the column's digits. An int is shown as it is; zero is never negative.

        >>> Column("auc", "AUC").number(-0.001)
        '0.00'
        >>> Column("feat", "Feat-MSE", significant=2).number(0.0000471)
        '4.7e-05'
        """
        tiny = self.significant is not None and 0 < abs(value) < 10**-self.digits
        form = f".{self.significant}g" if tiny else f".{self.digits}f"
        shown = str(value) if isinstance(value, int) else f"{value:{form}}"
        return shown.removeprefix("-") if float(shown) == 0 else shown


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with its interval. `text` replaces the shown value, `note` is a footnote, `link` is a record's id.

    `mark` is a verdict (`tables.marks`) whose sign stands before the value.
    """

    value: float | int | str | None
    low: float | None = None
    high: float | None = None
    text: str | None = None
    best: bool = False
    note: str = ""
    link: str = ""
    mark: str = ""

    def __post_init__(self) -> None:
        if self.value is not None and not isinstance(self.value, str):
            object.__setattr__(self, "value", _finite(self.value, "value"))
        for end in ("low", "high"):
            if getattr(self, end) is not None:
                object.__setattr__(self, end, float(_finite(getattr(self, end), end)))
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"An interval's low end must not exceed its high end; given: {self.low}, {self.high}.")

    def main(self, column: Column) -> str:
        """The shown value without its interval: the text, the number, or a dash for None."""
        if self.text is not None:
            return self.text
        if self.value is None:
            return NOTHING
        return self.value if isinstance(self.value, str) else column.number(self.value)

    @property
    def sign(self) -> str:
        """The sign of the mark with a space behind it; nothing without a mark.

        >>> Cell(0.5, mark="held").sign
        '✓ '
        """
        return f"{SIGNS[self.mark]} " if self.mark in SIGNS else ""

    def interval(self, column: Column) -> str:
        """The shown interval, or nothing. A `text` has no interval, because it replaces the number.

        >>> Cell(0.5, 0.4, 0.61).interval(Column("auc", "AUC"))
        '[0.40, 0.61]'
        """
        if self.text is not None or not self.is_number or (self.low is None and self.high is None):
            return ""
        low, high = (NOTHING if end is None else column.number(end) for end in (self.low, self.high))
        return f"[{low}, {high}]"

    @property
    def is_shown(self) -> bool:
        """Whether there is a value, or a text instead of one."""
        return self.value is not None or self.text is not None

    @property
    def is_number(self) -> bool:
        """Whether the value is a number."""
        return isinstance(self.value, (int, float))


@dataclass(frozen=True, slots=True)
class Row:
    """One row: cells by column key (a missing one is shown as a dash). `muted` rows are below the line, unranked."""

    cells: Mapping[str, Cell]
    section: str = ""
    muted: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", dict(self.cells))  # a copy: later changes by the caller have no effect

    def cell(self, column: Column) -> Cell:
        """The cell of a column."""
        return self.cells.get(column.key, Cell(None))


class Group(NamedTuple):
    """The rows of a section in reading order: ranked rows, then those below the line."""

    section: str
    ranked: tuple[Row, ...]
    muted: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows with a title, a caption and notes."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    caption: str = ""

    def __post_init__(self) -> None:
        for name in ("columns", "rows", "notes"):  # lists are accepted; the kept tuples cannot change
            object.__setattr__(self, name, tuple(getattr(self, name)))
        keys = [column.key for column in self.columns]
        if not keys or len(set(keys)) < len(keys):
            raise ValueError(f"A table needs columns with different keys; given: {', '.join(keys) or 'none'}.")
        unknown = sorted({key for row in self.rows for key in row.cells} - set(keys))
        if unknown:
            raise ValueError(f"A row has cells without a column: {', '.join(unknown)}; columns: {', '.join(keys)}.")

    def groups(self) -> list[Group]:
        """The rows by section, in the order of each section's first row. Sections with muted rows only come last."""
        groups = []
        for section in dict.fromkeys(row.section for row in self.rows):
            rows = [row for row in self.rows if row.section == section]
            groups.append(
                Group(section, *(tuple(row for row in rows if row.muted is below) for below in (False, True)))
            )
        return sorted(groups, key=lambda group: not group.ranked)  # the sort is stable

    def footnotes(self) -> dict[str, int]:
        """Every cell's note with its number, counted in reading order. Equal notes share a number."""
        rows = (row for group in self.groups() for row in group.ranked + group.muted)
        notes = (row.cell(column).note for row in rows for column in self.columns)
        return {note: number for number, note in enumerate(dict.fromkeys(filter(None, notes)), start=1)}

    def is_numeric(self, column: Column) -> bool:
        """Whether a column contains a number; such columns are aligned to the right, unless they have marks."""
        cells = [row.cell(column) for row in self.rows]
        return any(cell.is_number for cell in cells) and not any(cell.mark for cell in cells)

    def without_empty(self) -> Table:
        """A copy without the columns that have no value in any row; a note says why, where a cell does.

        The first column stays, and so do all columns of a table without rows.
        """
        empty = [c for c in self.columns[1:] if self.rows and not any(row.cell(c).is_shown for row in self.rows)]
        if not empty:
            return self
        reasons: dict[str, list[str]] = {}
        for column in empty:
            reason = next((row.cell(column).note for row in self.rows if row.cell(column).note), "")
            reasons.setdefault(reason, []).append(column.title)
        left = [f"Left out, because nobody has a value: {', '.join(t)} ({r})." for r, t in reasons.items() if r]
        gone = {column.key for column in empty}
        rows = tuple(replace(r, cells={k: c for k, c in r.cells.items() if k not in gone}) for r in self.rows)
        columns = tuple(column for column in self.columns if column.key not in gone)
        return replace(self, columns=columns, rows=rows, notes=(*self.notes, *left))

    def mark_best(self, *, within_sections: bool = False) -> Table:
        """A copy in which the best cells of each column with a direction are marked. Muted rows do not count.

        A cell ties with the best if it shows the same number, or the same text as a best cell (such as "≤ prior").
        """

        def scope(row: Row) -> str:
            return row.section if within_sections else ""

        winners: dict[tuple[str, str], set[str]] = {}
        for column in self.columns:
            for where in {scope(row) for row in self.rows}:
                cells = [row.cell(column) for row in self.rows if not row.muted and scope(row) == where]
                winners[where, column.key] = _winners(column, cells)

        def marked(row: Row, column: Column) -> Cell:
            cell = row.cell(column)
            return replace(cell, best=not row.muted and bool(_signs(column, cell) & winners[scope(row), column.key]))

        kept = [(row, [c for c in self.columns if c.key in row.cells]) for row in self.rows]
        return replace(self, rows=tuple(replace(r, cells={c.key: marked(r, c) for c in cs}) for r, cs in kept))


def _signs(column: Column, cell: Cell) -> set[str]:
    """What a cell must share with another to tie: its number to the shown digits, or the text shown instead."""
    if not isinstance(cell.value, (int, float)):
        return set()
    return {column.number(float(cell.value))} | ({cell.text} if cell.text is not None else set())


def _winners(column: Column, cells: Sequence[Cell]) -> set[str]:
    """The signs of the best cells of a column: those that show the same number as the best value."""
    values = [cell.value for cell in cells if isinstance(cell.value, (int, float))]
    if column.direction is None or not values:
        return set()
    best = column.number(float(max(values) if column.direction == "higher" else min(values)))
    return set().union(*(signs for signs in (_signs(column, cell) for cell in cells) if best in signs))
