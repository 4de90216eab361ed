"""Tables as GitHub's Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from leakboard.core.terminal import plain
from leakboard.leaderboard.tables.formats.base import Format
from leakboard.leaderboard.tables.formats.shared import marked_remarks, raised
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", html.escape(plain(text), quote=False))


def _markdown_cell(cell: Cell, column: Column, muted: bool, mark: str) -> str:
    style = "**" if cell.best else "*" if muted else ""
    shown = cell.sign + _markdown(cell.main(column)).strip()
    interval = cell.interval(column)
    return (f"{style}{shown}{style}" if shown else "") + (f" {interval}" if interval else "") + mark


def to_markdown(table: Table) -> str:
    """GitHub's Markdown: best cells in bold, muted rows in italics."""
    marks, blank = table.footnotes(), [""] * (len(table.columns) - 1)

    def cells(row: Row) -> list[str]:
        pairs = [(row.cell(column), column) for column in table.columns]
        return [_markdown_cell(cell, column, row.muted, raised(marks.get(cell.note))) for cell, column in pairs]

    lines = [[_markdown(column.header) for column in table.columns]]
    lines.append(["---:" if table.is_numeric(column) else "---" for column in table.columns])
    for section, ranked, muted in table.groups():
        lines += [[f"**{_markdown(section)}**", *blank]] if section else []
        lines += [cells(row) for row in ranked + muted]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    beneath = "\n".join(f"- {raised(int(m)) + ' ' if m else ''}{_markdown(text)}" for m, text in marked_remarks(table))
    return "\n\n".join(filter(None, [f"### {_markdown(table.title)}", _markdown(table.caption), grid, beneath])) + "\n"


class Markdown(Format):
    """GitHub's Markdown."""

    name = "md"
    comment = ""

    def render(self, tables: Sequence[Table]) -> str:
        """The tables one after the other."""
        return "\n\n".join(map(to_markdown, tables)) + "\n"
