"""Tables as HTML: one `<table>` element, without style or script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from leakboard.core.terminal import plain
from leakboard.leaderboard.tables.formats.base import Format
from leakboard.leaderboard.tables.formats.shared import marked_remarks
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table


def _html(text: str) -> str:
    return html.escape(plain(text), quote=True)


def _html_cell(cell: Cell, column: Column, mark: int | None, first: bool, numeric: bool) -> str:
    shown = f'<span class="value">{_html(cell.main(column))}</span>'
    if cell.sign:
        shown = f'<span class="mark">{_html(cell.sign.strip())}</span> {shown}'
    interval = cell.interval(column)
    shown += f' <span class="interval">{_html(interval)}</span>' if interval else ""
    if cell.link:  # always a fragment of this page: no record's name can become a javascript: address
        shown = f'<a href="#record={quote(cell.link, safe="")}" data-record="{_html(cell.link)}">{shown}</a>'
    shown += f"<sup>{mark}</sup>" if mark is not None else ""
    names = ["number"] * cell.is_number + ["best"] * cell.best + ["instead"] * (cell.text is not None)
    names += ["missing"] * (cell.value is None) + ["right"] * (numeric and not cell.is_number)
    sort = "" if cell.value is None else _html(str(cell.value))
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f'<{tag}{scope} class="{" ".join(names)}" data-sort="{sort}">{shown}</{tag}>'


def _html_rows(table: Table, rows: Iterable[Row], name: str) -> str:
    marks = table.footnotes()
    lines = []
    for row in rows:
        cells = [(row.cell(column), column) for column in table.columns]
        shown = (
            _html_cell(cell, column, marks.get(cell.note), i == 0, table.is_numeric(column))
            for i, (cell, column) in enumerate(cells)
        )
        lines.append(f"<tr>{''.join(shown)}</tr>\n")
    return f'<tbody class="{name}">\n{"".join(lines)}</tbody>\n' if lines else ""


def to_html(table: Table) -> str:
    """One `<table>` element: sortable by `data-sort`, with footnotes in its foot, and without anything that can run."""
    span = f'colspan="{len(table.columns)}"'
    head = "".join(
        f'<th scope="col" data-key="{_html(c.key)}" data-direction="{c.direction or ""}" title="{_html(c.help)}"'
        f' class="{"number" * table.is_numeric(c)}">{_html(c.header)}</th>'
        for c in table.columns
    )
    body = ""
    for section, ranked, muted in table.groups():
        if section:
            body += f'<tbody class="section"><tr><th scope="rowgroup" {span}>{_html(section)}</th></tr></tbody>\n'
        body += _html_rows(table, ranked, "ranked") + _html_rows(table, muted, "muted")
    marked = [(f"<sup>{mark}</sup> " if mark else "") + _html(text) for mark, text in marked_remarks(table)]
    foot = "".join(f'<tr><td {span} class="note"><span>{remark}</span></td></tr>\n' for remark in marked)
    return (
        f'<table class="leaderboard">\n'
        f"<caption><strong>{_html(table.title)}</strong> <span>{_html(table.caption)}</span></caption>\n"
        f"<thead><tr>{head}</tr></thead>\n{body}" + (f"<tfoot>\n{foot}</tfoot>\n" if foot else "") + "</table>\n"
    )


class Html(Format):
    """One HTML `<table>` element per table, without style or script."""

    name = "html"

    def render(self, tables: Sequence[Table]) -> str:
        """The tables one after the other."""
        return "\n\n".join(map(to_html, tables)) + "\n"
