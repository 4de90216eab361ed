"""Tables as booktabs LaTeX, for pdfLaTeX with its default fonts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap

from leakboard.core.terminal import plain
from leakboard.leaderboard.tables.formats.base import Format
from leakboard.leaderboard.tables.formats.shared import RAISED, marked_remarks
from leakboard.leaderboard.tables.table import NOTHING, Cell, Column, Group, Row, Table

#: what a document must load
PACKAGES = r"\usepackage{booktabs,graphicx}"
#: lines of a page besides title, header and notes
LINES = 36
#: below every table that shows an interval
INTERVALS = "Numbers behind ±, or raised with + and lowered with −, are the ends of 95 % intervals."
#: letters that pdfLaTeX's default encoding lacks, with the nearest ASCII letters
_LETTERS = dict(zip("ÐÞðþĐđĦħĸŊŋŦŧ", ["D", "Th", "d", "th", "D", "d", "H", "h", "k", "N", "n", "T", "t"], strict=True))
_UNKNOWN = set("ĄąĘęĮįŲųĿŀŉſªº") | set(_LETTERS)
_GREEK = "alpha beta gamma delta zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon chi psi omega"
_GREEK_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
#: characters that pdfLaTeX needs a command for
SIGNS = {
    **{char: "\\" + char for char in "&%$#_{}"},
    **{char: f"${char}$" for char in "<>|"},
    **{char: f"{{{char}}}" for char in "[]*"},  # bare, they would be an argument of the \\ before them
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": r"\textasciigrave{}"},
    **{'"': "''", "‘": "`", "’": "'", "“": "``", "”": "''", "…": r"\ldots{}", "−": "$-$", "°": r"$^\circ$"},
    **{"–": r"\textendash{}", "—": r"\textemdash{}", "≤": r"$\leq$", "≥": r"$\geq$", "±": r"$\pm$", "≈": r"$\approx$"},
    **{
        "×": r"$\times$",
        "·": r"$\cdot$",
        "∞": r"$\infty$",
        "√": r"$\surd$",
        "✓": r"$\surd$",
        "✗": r"$\times$",
        "µ": r"$\mu$",
        "⁄": "/",
    },
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$", "ε": r"$\varepsilon$", "φ": r"$\varphi$"},
    **{char: f"$\\{name}$" for char, name in zip("αβγδζηθικλμνξπρστυχψω", _GREEK.split(), strict=True)},
    **{char: f"$\\{name}$" for char, name in zip("ΓΔΘΛΞΠΣΦΨΩ", _GREEK_CAPITALS.split(), strict=True)},
    **{char: rf"\textsuperscript{{{digit}}}" for digit, char in enumerate(RAISED)},
    **_LETTERS,
}


def _latex(text: str) -> str:
    """Text for pdfLaTeX: known letters stay, signs become commands, all else its nearest ASCII or a question mark."""

    def known(char: str) -> str:
        if char in SIGNS:
            return SIGNS[char]
        if char.isascii() or (char < "\u0180" and char.isalpha() and char not in _UNKNOWN):
            return char
        parts = unicodedata.normalize("NFKD", char)
        near = "".join(SIGNS.get(part, part) for part in parts if part.isascii() or part in SIGNS)
        return near or ("" if unicodedata.combining(char) else "?")

    # two hyphens (--fresh-keys) would print as a dash
    return re.sub("-(?=-)", "-{}", "".join(map(known, plain(text))))


def _reach(cell: Cell, column: Column) -> str:
    """The interval relative to the number: ± if it is symmetric, else + above and − below.

    An interval that is open at one end, or does not contain the number, is printed as it is.
    """
    interval = cell.interval(column)
    value, low, high = cell.value, cell.low, cell.high
    if interval and isinstance(value, (int, float)) and low is not None and high is not None and low <= value <= high:
        up, down = column.number(high - value), column.number(value - low)
        return rf" \pm {_power(up)}" if up == down else f"^{{+{_power(up)}}}_{{-{_power(down)}}}"
    return r"_{\," + _power(interval).replace(NOTHING, r"\cdot") + "}" if interval else ""


def _power(numbers: str) -> str:
    """4.7e-05 as a power of ten."""
    # in braces, because an exponent may follow
    return re.sub(r"e([+-]\d+)", lambda found: rf" \cdot {{10^{{{int(found[1])}}}}}", numbers)


def _latex_cell(cell: Cell, column: Column, mark: str) -> str:
    main = cell.main(column)
    if cell.is_number and cell.text is None:
        number = rf"\mathbf{{{_power(main)}}}" if cell.best else _power(main)
        return f"${number}{_reach(cell, column)}${mark}"
    shown = _latex(cell.sign + main)
    return (rf"\textbf{{{shown}}}" if cell.best else shown) + mark


def to_latex(table: Table) -> str:
    r"""A `table` float: best cells in bold, intervals with ±, unranked rows below a rule. Wide tables are scaled down.

    A table that is too long for a page becomes several. Each has a `\label` made of its title. The first line is a
    comment with the packages that the document must load.
    """
    if any(_reach(row.cell(column), column) for row in table.rows for column in table.columns):
        table = replace(table, notes=(*table.notes, INTERVALS))
    pages = _pages(table)
    if len(pages) == 1:
        return _float(table, table.groups())
    titled = [replace(table, title=f"{table.title} ({n} of {len(pages)})") for n in range(1, len(pages) + 1)]
    return "\n".join(starmap(_float, zip(titled, pages, strict=True)))


def _pages(table: Table) -> list[list[Group]]:
    """The table's groups of rows in parts. Each part fits on a page with its footnotes."""
    pages: list[list[Group]] = [[]]
    notes: set[str] = set()
    left = room = LINES - sum(map(_lines, table.notes))
    for group in table.groups():
        fresh = True  # the first row of a group on a page also needs a title and rules
        for row in (*group.ranked, *group.muted):
            own = {cell.note for cell in (row.cell(column) for column in table.columns) if cell.note}
            taken = 1 + sum(map(_lines, own - notes)) + (3 if fresh else 0)
            if taken > left and pages[-1]:
                pages.append([])
                notes, left, fresh = set(), room, True
                taken = 4 + sum(map(_lines, own))
            if fresh:
                pages[-1].append(Group(group.section, (), ()))
            last = pages[-1][-1]
            ranked, muted = ((), (row,)) if row.muted else ((row,), ())
            pages[-1][-1] = Group(last.section, (*last.ranked, *ranked), (*last.muted, *muted))
            notes, left, fresh = notes | own, left - taken, False
    return pages


def _label(title: str) -> str:
    """The name for `\\ref`: letters and digits of the title.

    >>> _label("Reconstruction, digits, threat server:active, ε = 3")
    'tab:reconstruction-digits-threat-server-active-3'
    """
    return "tab:" + "-".join(re.findall("[a-z0-9]+", title.lower()))


def _lines(note: str) -> int:
    """The minimum number of lines of a footnote."""
    return 1 + len(note) // 90


def _float(table: Table, groups: Sequence[Group]) -> str:
    """One `table` float of these groups of the table's rows."""
    rows = tuple(row for group in groups for row in (*group.ranked, *group.muted))
    table = replace(table, rows=rows)
    marks = table.footnotes()

    def line(row: Row) -> str:
        pairs = [(row.cell(column), column) for column in table.columns]
        raised = [rf"\textsuperscript{{{marks[cell.note]}}}" if cell.note else "" for cell, _ in pairs]
        return " & ".join(_latex_cell(*pair, mark) for pair, mark in zip(pairs, raised, strict=True)) + r" \\"

    body = []
    for section, ranked, muted in groups:
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
    beneath = [(rf"\textsuperscript{{{mark}}} " if mark else "") + _latex(text) for mark, text in marked_remarks(table)]
    return "\n".join(
        [f"% {PACKAGES}", r"\begin{table}[t]", r"\centering", rf"\caption{{{caption}}}"]
        + [rf"\label{{{_label(table.title)}}}"]
        + [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"]
        + [rf"\begin{{tabular}}{{@{{}}{form}@{{}}}}", r"\toprule", header, *body, r"\bottomrule", r"\end{tabular}}"]
        + [rf"\par\smallskip{{\footnotesize {remark}\par}}" for remark in beneath]
        + [r"\end{table}", ""]
    )


class Latex(Format):
    """Booktabs LaTeX, one float per table."""

    name = "latex"
    comment = "% "

    def render(self, tables: Sequence[Table]) -> str:
        """The tables one after the other; labels that are taken get a number."""
        seen: Counter[str] = Counter()

        def numbered(found: re.Match[str]) -> str:
            seen[found[1]] += 1
            return found[0] if seen[found[1]] == 1 else rf"\label{{{found[1]}-{seen[found[1]]}}}"

        text = "\n\n".join(map(to_latex, tables)) + "\n"
        return re.sub(r"^\\label\{(tab:[a-z0-9-]*)\}$", numbered, text, flags=re.MULTILINE)
