"""Tables for the terminal: plain text, or with colours where somebody reads it on a screen."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from leakboard.core.terminal import plain
from leakboard.leaderboard.tables.formats.shared import raised, remarks
from leakboard.leaderboard.tables.marks import STYLES, in_ascii, legend
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

_NARROWEST = 40  # columns of a terminal, below which nothing legible fits
_HEADER, _BEST, _MUTED, _NOTE = "bold", "bold green", "dim", "dim"


@dataclass(frozen=True)
class _Line:
    """A line of the grid: cells with the style of each, or a rule with a title beneath it."""

    cells: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    rule: str = ""
    title: str = ""


def to_terminal(table: Table, width: int | None = None, *, colour: bool = False, only_ascii: bool = False) -> str:
    """Aligned text within a width (at least 40): wide tables continue in blocks beneath, `*` marks the best.

    Headings of tables that are too wide are broken into lines first. Without `colour` there is no escape code in it,
    whatever a plugin calls itself; with `only_ascii` no other character either.
    """
    limit = max(width, _NARROWEST) if width is not None else 10**6
    spell = in_ascii if only_ascii else str
    body = [replace(line, cells=tuple(map(spell, line.cells))) for line in _grid(table)]
    headers = [spell(plain(column.header)) for column in table.columns]
    widths = _widths([headers, *(line.cells for line in body if line.cells)], limit)
    grid = [*_headers(headers, widths), _Line(rule="─"), *body]
    out = [Text(line, style=_HEADER) for line in textwrap.wrap(spell(plain(table.title)), limit)]
    out += [Text(line) for line in textwrap.wrap(spell(plain(table.caption)), limit)]
    for block in _blocks(widths, limit):
        out += [Text(), *_drawn(table, grid, block, widths, limit)]
    beneath = [(f"{raised(int(mark))} " if mark else "") + plain(text) for mark, text in remarks(table)]
    cells = [cell for row in table.rows for cell in row.cells.values()]
    beneath += list(filter(None, [legend({cell.mark for cell in cells})]))
    beneath += ["* best"] if any(cell.best for cell in cells) else []
    out += [
        Text(),
        *(Text(line, style=_NOTE) for remark in map(spell, beneath) for line in textwrap.wrap(remark, limit)),
    ]
    if only_ascii:
        out = [Text(in_ascii(line.plain)) for line in out]
    lines = [_coloured(line) if colour else line.plain for line in out]
    return "\n".join(lines).rstrip() + "\n"


def _grid(table: Table) -> Iterator[_Line]:
    """Sections with their ranked rows, a rule, and the rows below it."""
    marks, columns = table.footnotes(), table.columns
    for section, ranked, muted in table.groups():
        if section:
            yield _Line(rule="─", title=plain(section))
        for row in ranked:
            yield _row(row, columns, marks)
        if ranked and muted:
            yield _Line(rule="┄")
        for row in muted:
            yield _row(row, columns, marks)


def _row(row: Row, columns: Sequence[Column], marks: Mapping[str, int]) -> _Line:
    cells = [row.cell(column) for column in columns]
    shown = tuple(_shown(cell, column, marks) for cell, column in zip(cells, columns, strict=True))
    return _Line(shown, tuple(_style(row, cell) for cell in cells))


def _style(row: Row, cell: Cell) -> str:
    """The colour of a cell. A mark keeps its own in an unranked row, because that a defense leaks is still known."""
    if cell.mark in STYLES:
        return STYLES[cell.mark]
    return _MUTED if row.muted else _BEST if cell.best else ""


def _shown(cell: Cell, column: Column, marks: Mapping[str, int]) -> str:
    parts = ["*" * cell.best + cell.sign + plain(cell.main(column)), cell.interval(column)]
    return " ".join(filter(None, parts)) + raised(marks.get(cell.note))


def _headers(headers: Sequence[str], widths: Sequence[int]) -> list[_Line]:
    """The headings in as many lines as the longest one needs, all of them standing on the rule."""
    wrapped = [textwrap.wrap(text, width) or [""] for text, width in zip(headers, widths, strict=True)]
    height = max(map(len, wrapped))
    filled = [[""] * (height - len(lines)) + lines for lines in wrapped]
    return [_Line(tuple(line), (_HEADER,) * len(headers)) for line in zip(*filled, strict=True)]


def _widths(cells: Sequence[Sequence[str]], limit: int) -> list[int]:
    """The columns' widths for a header and rows.

    Where all do not fit side by side, headings are broken; where that is not enough, the first column takes a third,
    and none more than the rest.
    """
    whole = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    widths = whole if _sum(whole) <= limit else _broken(cells[0], cells[1:], whole, limit)
    if _sum(widths) > limit:
        widths[0] = min(widths[0], limit if len(widths) == 1 else limit // 3)
    return [widths[0], *(min(each, limit - widths[0] - 2) for each in widths[1:])]


def _sum(widths: Sequence[int]) -> int:
    """The width of columns side by side."""
    return sum(widths) + 2 * len(widths) - 2


def _broken(headers: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[int], limit: int) -> list[int]:
    """Widths with broken headings: no word of a heading is cut, and the room that is left goes to the tallest ones."""
    words = [max(map(cell_len, text.split()), default=1) for text in headers]
    widths = [max([word, *(cell_len(row[i]) for row in rows)]) for i, word in enumerate(words)]

    def height(column: int) -> int:
        return len(textwrap.wrap(headers[column], widths[column]))

    for _ in range(limit - _sum(widths)):
        growing = [i for i in range(len(widths)) if widths[i] < whole[i] and height(i) > 1]
        if growing:
            widths[max(growing, key=height)] += 1
    return widths


def _blocks(widths: Sequence[int], limit: int) -> list[list[int]]:
    """Columns in blocks that fit the limit, the first column in each: what does not fit beside stands beneath."""
    blocks: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        taken = sum(widths[i] + 2 for i in blocks[-1])
        if len(blocks[-1]) > 1 and taken + widths[column] > limit:
            blocks.append([0])
        blocks[-1].append(column)
    return blocks


def _drawn(
    table: Table, grid: Sequence[_Line], block: Sequence[int], widths: Sequence[int], limit: int
) -> Iterator[Text]:
    """The lines of one block of columns; of two rules in a row, the second is drawn, which has a title."""
    whole = sum(widths[i] + 2 for i in block) - 2
    for line, following in zip(grid, [*grid[1:], _Line()], strict=True):
        if line.rule and not following.rule:
            yield Text(line.rule * whole)
            yield from (Text(part, style=_HEADER) for part in textwrap.wrap(line.title, limit))
        if line.cells:
            parts = [
                (_fitted(line.cells[i], widths[i], table.is_numeric(table.columns[i])), line.styles[i]) for i in block
            ]
            made = Text("  ").join(Text(text, style=style) for text, style in parts)
            made.rstrip()
            yield made


def _fitted(text: str, width: int, right: bool) -> str:
    """A text at exactly this width: cut with an ellipsis, or filled up with spaces."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _coloured(line: Text) -> str:
    """A line with escape codes; how many colours, and whether any (NO_COLOR), the environment says."""
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=10**6, highlight=False).print(line, end="", soft_wrap=True)
    return out.getvalue()
