"""Tables as text for a terminal."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Mapping, Sequence

from leakboard.core.terminal import plain
from leakboard.leaderboard.tables.formats.shared import raised, remarks
from leakboard.leaderboard.tables.table import Cell, Column, Table

_NARROWEST = 40  # columns of a terminal, below which nothing legible fits


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    """A text at exactly this width: cut with an ellipsis, or filled up with spaces."""
    if _width(text) > width:
        while text and _width(text) >= width:
            text = text[:-1]
        text += "…"
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _blocks(widths: Sequence[int], limit: int) -> list[list[int]]:
    """Columns in blocks that fit the limit, the first column in each: what does not fit beside stands beneath."""
    blocks: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        taken = sum(widths[i] + 2 for i in blocks[-1])
        if len(blocks[-1]) > 1 and taken + widths[column] > limit:
            blocks.append([0])
        blocks[-1].append(column)
    return blocks


def _terminal_cell(cell: Cell, column: Column, marks: Mapping[str, int]) -> str:
    parts = ["*" * cell.best + plain(cell.main(column)), cell.interval(column)]
    return " ".join(filter(None, parts)) + raised(marks.get(cell.note))


def to_terminal(table: Table, width: int | None = None) -> str:
    """Aligned plain text within a width (at least 40): wide tables continue in blocks beneath, `*` marks the best."""
    limit = max(width, _NARROWEST) if width is not None else 10**6
    marks, columns = table.footnotes(), table.columns
    grid = [[plain(column.header) for column in columns]]
    rules = {1: ("─", "")}  # what is drawn before which line of the grid: a rule and a section's title
    for section, ranked, muted in table.groups():
        rules |= {len(grid): ("─", plain(section))} if section else {}
        grid += [[_terminal_cell(row.cell(column), column, marks) for column in columns] for row in ranked]
        rules |= {len(grid): ("┄", "")} if ranked and muted else {}
        grid += [[_terminal_cell(row.cell(column), column, marks) for column in columns] for row in muted]
    widths = [max(map(_width, cells)) for cells in zip(*grid, strict=True)]
    if sum(widths) + 2 * len(widths) - 2 > limit:
        widths[0] = min(widths[0], limit if len(columns) == 1 else limit // 3)
    widths[1:] = [min(each, limit - widths[0] - 2) for each in widths[1:]]
    out = textwrap.wrap(plain(table.title), limit) + textwrap.wrap(plain(table.caption), limit)
    for block in _blocks(widths, limit):
        out.append("")
        for number, cells in enumerate(grid):
            if number in rules:
                sign, title = rules[number]
                out.append(sign * (sum(widths[i] + 2 for i in block) - 2))
                out += textwrap.wrap(title, limit)
            out.append("  ".join(_pad(cells[i], widths[i], table.is_numeric(columns[i])) for i in block).rstrip())
    beneath = [(f"{raised(int(mark))} " if mark else "") + plain(text) for mark, text in remarks(table)]
    beneath += ["* best"] if any(cell.best for row in table.rows for cell in row.cells.values()) else []
    return "\n".join([*out, "", *(line for remark in beneath for line in textwrap.wrap(remark, limit))]).rstrip() + "\n"
