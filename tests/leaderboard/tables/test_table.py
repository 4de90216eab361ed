"""The table object: what it refuses, what a cell shows, who is best, and the order of reading."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

NAME = Column("name", "Defense")
AUC = Column("auc", "AUC", direction="lower", digits=2)
ACC = Column("acc", "Accuracy", "%", "higher", digits=1)


def board(*rows: Row) -> Table:
    return Table("T", (NAME, AUC, ACC), rows)


def best(table: Table, key: str) -> list[bool]:
    return [row.cells[key].best for row in table.rows]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), True])
def test_what_is_not_a_finite_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Cell(bad)
    with pytest.raises(ValueError, match="low must be a finite"):
        Cell(0.5, low=bad)
    with pytest.raises(ValueError, match="high must be a finite"):
        Cell(0.5, high=bad)


def test_an_interval_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ValueError, match="low end"):
        Cell(0.5, 0.6, 0.4)


def test_numbers_of_numpy_become_plain() -> None:
    assert type(Cell(np.float32(0.5)).value) is float  # type: ignore[arg-type]
    assert type(Cell(np.int64(3)).value) is int  # type: ignore[arg-type]
    assert type(Cell(0.5, low=np.float32(0.25)).low) is float  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "main", "interval"),
    [
        (Cell(0.519, 0.4, 0.6), "0.52", "[0.40, 0.60]"),
        (Cell(7), "7", ""),
        (Cell(-0.0004), "0.00", ""),
        (Cell(-1.5), "-1.50", ""),
        (Cell(None, note="why"), "–", ""),
        (Cell("mp-dp"), "mp-dp", ""),
        (Cell(0.1, -0.1, 0.2, text="≤ prior"), "≤ prior", ""),
        (Cell(0.7, low=0.5), "0.70", "[0.50, –]"),
    ],
)
def test_what_a_cell_shows(cell: Cell, main: str, interval: str) -> None:
    assert (cell.main(AUC), cell.interval(AUC)) == (main, interval)


def test_a_header_has_unit_and_arrow() -> None:
    assert [column.header for column in (NAME, AUC, ACC)] == ["Defense", "AUC ↓", "Accuracy (%) ↑"]


def test_columns_and_cells_must_fit() -> None:
    with pytest.raises(ValueError, match="different keys"):
        Table("T", (AUC, AUC), ())
    with pytest.raises(ValueError, match="given: none"):
        Table("T", (), ())
    with pytest.raises(ValueError, match="without a column: other"):
        board(Row({"other": Cell(1)}))


def test_what_is_kept_cannot_be_changed_from_outside() -> None:
    cells = {"auc": Cell(0.5)}
    rows = [Row(cells)]
    table = Table("T", [AUC], rows)  # type: ignore[arg-type]
    cells["auc"] = Cell(0.9)
    rows.clear()
    assert table.rows[0].cells["auc"].value == 0.5
    assert table.rows[0].cell(ACC) == Cell(None)


def test_best_follows_the_direction_with_ties_as_shown() -> None:
    table = board(
        Row({"name": Cell("a"), "auc": Cell(0.5012), "acc": Cell(61.04)}),
        Row({"name": Cell("b"), "auc": Cell(0.4999), "acc": Cell(60.96)}),
        Row({"name": Cell("c"), "auc": Cell(0.5100), "acc": Cell(60.94)}),
        Row({"name": Cell("d"), "auc": Cell(None, note="failed"), "acc": Cell("n/a")}),
        Row({"name": Cell("e"), "auc": Cell(0.1), "acc": Cell(99.0)}, muted=True),
    )
    marked = table.mark_best()
    assert best(marked, "auc") == [True, True, False, False, False]
    assert best(marked, "acc") == [True, True, False, False, False]
    assert best(marked, "name") == [False] * 5
    assert best(table, "auc") == [False] * 5
    assert marked.mark_best() == marked


def test_equal_texts_tie_with_the_best() -> None:
    cells = [Cell(0.1, text="≤ prior"), Cell(0.3, text="≤ prior"), Cell(0.2), Cell(None, text="≤ prior")]
    assert best(board(*(Row({"auc": cell}) for cell in cells)).mark_best(), "auc") == [True, True, False, False]


def test_an_int_and_a_float_tie() -> None:
    assert best(board(Row({"auc": Cell(1)}), Row({"auc": Cell(1.0)})).mark_best(), "auc") == [True, True]


def test_best_within_sections() -> None:
    values = [("x", 0.1), ("x", 0.2), ("y", 0.3), ("y", 0.4)]
    table = board(*(Row({"auc": Cell(value)}, section=section) for section, value in values))
    assert best(table.mark_best(), "auc") == [True, False, False, False]
    assert best(table.mark_best(within_sections=True), "auc") == [True, False, True, False]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8))
def test_the_very_best_is_always_marked(values: list[float]) -> None:
    marked = board(*(Row({"auc": Cell(value)}) for value in values)).mark_best()
    assert best(marked, "auc")[values.index(min(values))]
    shown = {row.cells["auc"].main(AUC) for row in marked.rows if row.cells["auc"].best}
    assert len(shown) == 1


def test_groups_read_from_the_ranked_to_the_muted() -> None:
    table = board(
        Row({"name": Cell("z")}, section="off", muted=True),
        Row({"name": Cell("m")}, section="one", muted=True),
        Row({"name": Cell("a")}, section="one"),
        Row({"name": Cell("b")}, section="two"),
        Row({"name": Cell("c")}, section="one"),
    )
    shown = [
        (g.section, *("".join(str(r.cells["name"].value) for r in rows) for rows in g[1:])) for g in table.groups()
    ]
    assert shown == [("one", "ac", "m"), ("two", "b", ""), ("off", "", "z")]


def test_footnotes_count_in_the_order_of_reading_and_are_shared() -> None:
    table = board(
        Row({"name": Cell("m", note="third")}, muted=True),
        Row({"name": Cell("a", note="first"), "auc": Cell(None, note="second")}),
        Row({"name": Cell("b", note="second")}),
    )
    assert table.footnotes() == {"first": 1, "second": 2, "third": 3}


def test_a_column_is_numeric_if_it_holds_a_number() -> None:
    table = board(Row({"name": Cell("a"), "auc": Cell(None)}), Row({"auc": Cell(0.5, text="≤ prior")}))
    assert [table.is_numeric(column) for column in table.columns] == [False, True, False]
