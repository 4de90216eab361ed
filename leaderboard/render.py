"""Tables as Markdown, CSV, JSON, LaTeX, terminal text and HTML.

Names in a table come from plugins and records, so all text counts as hostile: each format escapes it its own way.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from urllib.parse import quote

from leaderboard.table import NOTHING, Cell, Column, Row, Table

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_EXTRAS = ("low", "high", "text", "note", "link")
_NARROWEST = 40  # columns of a terminal, below which nothing legible fits
_GREEK = "alpha beta gamma delta zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon chi psi omega"
_GREEK_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
_LATEX = {
    **{char: "\\" + char for char in "&%$#_{}"},
    **{char: f"${char}$" for char in "<>|"},
    **{char: f"{{{char}}}" for char in "[]*"},  # at the start of a line, \\ would take a bare one as its argument
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": r"\textasciigrave{}"},
    **{'"': "''", "‘": "`", "’": "'", "“": "``", "”": "''", "…": r"\ldots{}", "−": "$-$", "°": r"$^\circ$"},
    **{"–": r"\textendash{}", "—": r"\textemdash{}", "≤": r"$\leq$", "≥": r"$\geq$", "±": r"$\pm$", "≈": r"$\approx$"},
    **{"×": r"$\times$", "·": r"$\cdot$", "∞": r"$\infty$", "√": r"$\surd$", "µ": r"$\mu$"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$", "ε": r"$\varepsilon$", "φ": r"$\varphi$"},
    **{char: f"$\\{name}$" for char, name in zip("αβγδζηθικλμνξπρστυχψω", _GREEK.split(), strict=True)},
    **{char: f"$\\{name}$" for char, name in zip("ΓΔΘΛΞΠΣΦΨΩ", _GREEK_CAPITALS.split(), strict=True)},
    **{char: rf"\textsuperscript{{{digit}}}" for digit, char in enumerate(_RAISED)},
}


def _plain(text: str) -> str:
    """Text on one line without control characters: no escape sequence, no line break, no change of direction."""
    return "".join(char if char.isprintable() else " " for char in text)


def _raised(number: int | None) -> str:
    """A footnote's number in superscript digits; nothing for None."""
    return "" if number is None else "".join(_RAISED[int(digit)] for digit in str(number))


def _remarks(table: Table) -> list[tuple[str, str]]:
    """What stands under a table: footnotes with their marks, then the notes without."""
    footnotes = [(str(number), note) for note, number in table.footnotes().items()]
    return footnotes + [("", note) for note in table.notes]


# --- Markdown


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", html.escape(_plain(text), quote=False))


def _markdown_cell(cell: Cell, column: Column, muted: bool, mark: str) -> str:
    style = "**" if cell.best else "*" if muted else ""
    shown = _markdown(cell.main(column)).strip()
    interval = cell.interval(column)
    return (f"{style}{shown}{style}" if shown else "") + (f" {interval}" if interval else "") + mark


def to_markdown(table: Table) -> str:
    """GitHub's Markdown: the best bold, rows below the line in italics."""
    marks, blank = table.footnotes(), [""] * (len(table.columns) - 1)

    def cells(row: Row) -> list[str]:
        pairs = [(row.cell(column), column) for column in table.columns]
        return [_markdown_cell(cell, column, row.muted, _raised(marks.get(cell.note))) for cell, column in pairs]

    lines = [[_markdown(column.header) for column in table.columns]]
    lines.append(["---:" if table.is_numeric(column) else "---" for column in table.columns])
    for section, ranked, muted in table.groups():
        lines += [[f"**{_markdown(section)}**", *blank]] if section else []
        lines += [cells(row) for row in ranked + muted]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    remarks = "\n".join(f"- {_raised(int(m)) + ' ' if m else ''}{_markdown(text)}" for m, text in _remarks(table))
    return "\n\n".join(filter(None, [f"### {_markdown(table.title)}", _markdown(table.caption), grid, remarks])) + "\n"


# --- CSV and JSON


def _csv(value: object) -> object:
    """A CSV field: text that a spreadsheet would run as a formula gets a quote before it; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = _plain(value)  # Python's writer leaves a lone carriage return unquoted, and it would begin a new line
    return f"'{text}" if text.lstrip().startswith(tuple("=+-@＝＋－＠")) else text


def to_csv(tables: Sequence[Table]) -> str:
    """One header for all tables, a line a row; `key:low`, `key:note` and so on stand beside a column that has any."""
    rows = [(table, row) for table in tables for group in table.groups() for row in group.ranked + group.muted]
    keys = dict.fromkeys(column.key for table in tables for column in table.columns)
    seen = {(k, extra) for _, r in rows for k, c in r.cells.items() for extra in _EXTRAS if getattr(c, extra)}
    seen |= {(k, end) for _, r in rows for k, c in r.cells.items() for end in ("low", "high") if getattr(c, end) == 0}
    fields = [(key, extra) for key in keys for extra in ("value", *_EXTRAS) if extra == "value" or (key, extra) in seen]
    header = ["table", "section", "muted", *(key if extra == "value" else f"{key}:{extra}" for key, extra in fields)]
    if len(set(header)) < len(header):
        raise ValueError(f"Two columns of the CSV file would have one name, rename a key: {', '.join(header)}.")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv, header))
    for table, row in rows:
        cells = [getattr(row.cells.get(key), extra, None) for key, extra in fields]
        writer.writerow(map(_csv, [table.title, row.section, int(row.muted), *cells]))
    return out.getvalue()


def to_json(tables: Sequence[Table]) -> str:
    """Everything that the tables hold, field by field; `schema` is the version of this form."""
    return json.dumps(
        {"schema": 1, "tables": [asdict(t) for t in tables]}, ensure_ascii=False, allow_nan=False, indent=1
    )


# --- LaTeX


def _latex(text: str) -> str:
    """Text for pdflatex: what it knows stays, signs become commands, the rest its nearest ASCII or a question mark."""

    def known(char: str) -> str:
        if char in _LATEX:
            return _LATEX[char]
        if char.isascii() or (char < "\u0180" and char.isalpha()):
            return char
        near = "".join(_LATEX.get(c, c) for c in unicodedata.normalize("NFKD", char) if c.isascii())
        return near or ("" if unicodedata.combining(char) else "?")

    # two hyphens (--fresh-keys) would print as a dash
    return re.sub("-(?=-)", "-{}", "".join(map(known, _plain(text))))


def _latex_cell(cell: Cell, column: Column, mark: str) -> str:
    main, interval = cell.main(column), cell.interval(column).replace(NOTHING, r"\cdot")
    if cell.is_number and cell.text is None:
        number = rf"\mathbf{{{main}}}" if cell.best else main
        return f"${number}" + (rf"_{{\,{interval}}}" if interval else "") + f"${mark}"
    return (rf"\textbf{{{_latex(main)}}}" if cell.best else _latex(main)) + mark


def to_latex(table: Table) -> str:
    r"""A `table` float (needs `booktabs`): the best bold, intervals as subscripts, unranked rows below a rule."""
    marks = table.footnotes()

    def line(row: Row) -> str:
        pairs = [(row.cell(column), column) for column in table.columns]
        raised = [rf"\textsuperscript{{{marks[cell.note]}}}" if cell.note else "" for cell, _ in pairs]
        return " & ".join(_latex_cell(*pair, mark) for pair, mark in zip(pairs, raised, strict=True)) + r" \\"

    body = []
    for section, ranked, muted in table.groups():
        title = [rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{_latex(section)}}}}} \\"] if section else []
        body += [
            r"\midrule",
            *title,
            *map(line, ranked),
            *([r"\midrule"] if ranked and muted else []),
            *map(line, muted),
        ]
    form = "".join("r" if table.is_numeric(column) else "l" for column in table.columns)
    header = " & ".join(_latex(column.header) for column in table.columns) + r" \\"
    caption = ". ".join(_latex(text) for text in (table.title, table.caption) if text)
    remarks = [(rf"\textsuperscript{{{mark}}} " if mark else "") + _latex(text) for mark, text in _remarks(table)]
    return "\n".join(
        [r"\begin{table}[t]", r"\centering", rf"\caption{{{caption}}}"]
        + [rf"\begin{{tabular}}{{@{{}}{form}@{{}}}}", r"\toprule", header, *body, r"\bottomrule", r"\end{tabular}"]
        + [rf"\par\smallskip{{\footnotesize {remark}\par}}" for remark in remarks]
        + [r"\end{table}", ""]
    )


# --- terminal


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
    parts = ["*" * cell.best + _plain(cell.main(column)), cell.interval(column)]
    return " ".join(filter(None, parts)) + _raised(marks.get(cell.note))


def to_terminal(table: Table, width: int | None = None) -> str:
    """Aligned plain text within a width (at least 40): wide tables continue in blocks beneath, `*` marks the best."""
    limit = max(width, _NARROWEST) if width is not None else 10**6
    marks, columns = table.footnotes(), table.columns
    grid = [[_plain(column.header) for column in columns]]
    rules = {1: ("─", "")}  # what is drawn before which line of the grid: a rule and a section's title
    for section, ranked, muted in table.groups():
        rules |= {len(grid): ("─", _plain(section))} if section else {}
        grid += [[_terminal_cell(row.cell(column), column, marks) for column in columns] for row in ranked]
        rules |= {len(grid): ("┄", "")} if ranked and muted else {}
        grid += [[_terminal_cell(row.cell(column), column, marks) for column in columns] for row in muted]
    widths = [max(map(_width, cells)) for cells in zip(*grid, strict=True)]
    if sum(widths) + 2 * len(widths) - 2 > limit:
        widths[0] = min(widths[0], limit if len(columns) == 1 else limit // 3)
    widths[1:] = [min(each, limit - widths[0] - 2) for each in widths[1:]]
    out = textwrap.wrap(_plain(table.title), limit) + textwrap.wrap(_plain(table.caption), limit)
    for block in _blocks(widths, limit):
        out.append("")
        for number, cells in enumerate(grid):
            if number in rules:
                sign, title = rules[number]
                out.append(sign * (sum(widths[i] + 2 for i in block) - 2))
                out += textwrap.wrap(title, limit)
            out.append("  ".join(_pad(cells[i], widths[i], table.is_numeric(columns[i])) for i in block).rstrip())
    remarks = [(f"{_raised(int(mark))} " if mark else "") + _plain(text) for mark, text in _remarks(table)]
    remarks += ["* best"] if any(cell.best for row in table.rows for cell in row.cells.values()) else []
    return "\n".join([*out, "", *(line for remark in remarks for line in textwrap.wrap(remark, limit))]).rstrip() + "\n"


# --- HTML


def _html(text: str) -> str:
    return html.escape(_plain(text), quote=True)


def _html_cell(cell: Cell, column: Column, mark: int | None, first: bool) -> str:
    shown = f'<span class="value">{_html(cell.main(column))}</span>'
    interval = cell.interval(column)
    shown += f' <span class="interval">{_html(interval)}</span>' if interval else ""
    if cell.link:  # always a fragment of this page, so that no record's name can become a javascript: address
        shown = f'<a href="#record={quote(cell.link, safe="")}" data-record="{_html(cell.link)}">{shown}</a>'
    shown += f"<sup>{mark}</sup>" if mark is not None else ""
    names = ["number"] * cell.is_number + ["best"] * cell.best + ["missing"] * (cell.value is None)
    sort = "" if cell.value is None else _html(str(cell.value))
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f'<{tag}{scope} class="{" ".join(names)}" data-sort="{sort}">{shown}</{tag}>'


def _html_rows(table: Table, rows: Iterable[Row], name: str) -> str:
    marks = table.footnotes()
    lines = []
    for row in rows:
        cells = [(row.cell(column), column) for column in table.columns]
        shown = (_html_cell(c, column, marks.get(c.note), i == 0) for i, (c, column) in enumerate(cells))
        lines.append(f"<tr>{''.join(shown)}</tr>\n")
    return f'<tbody class="{name}">\n{"".join(lines)}</tbody>\n' if lines else ""


def to_html(table: Table) -> str:
    """One `<table>` element: sortable by `data-sort`, footnotes in its foot, nothing in it that can run."""
    span = f'colspan="{len(table.columns)}"'
    head = "".join(
        f'<th scope="col" data-key="{_html(c.key)}" data-direction="{c.direction or ""}" title="{_html(c.help)}">'
        f"{_html(c.header)}</th>"
        for c in table.columns
    )
    body = ""
    for section, ranked, muted in table.groups():
        if section:
            body += f'<tbody class="section"><tr><th scope="rowgroup" {span}>{_html(section)}</th></tr></tbody>\n'
        body += _html_rows(table, ranked, "ranked") + _html_rows(table, muted, "muted")
    marked = [(f"<sup>{mark}</sup> " if mark else "") + _html(text) for mark, text in _remarks(table)]
    foot = "".join(f'<tr><td {span} class="note">{remark}</td></tr>\n' for remark in marked)
    return (
        f'<table class="leaderboard">\n'
        f"<caption><strong>{_html(table.title)}</strong> {_html(table.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n{body}" + (f"<tfoot>\n{foot}</tfoot>\n" if foot else "") + "</table>\n"
    )
