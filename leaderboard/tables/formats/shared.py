"""What several formats share: footnote marks and the remarks below a table."""

from __future__ import annotations

from leakboard.leaderboard.tables.marks import legend
from leakboard.leaderboard.tables.table import Table

RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def raised(number: int | None) -> str:
    """A footnote's number in superscript digits; nothing for None."""
    return "" if number is None else "".join(RAISED[int(digit)] for digit in str(number))


def remarks(table: Table) -> list[tuple[str, str]]:
    """The remarks below a table: footnotes with their marks, then notes without a mark."""
    footnotes = [(str(number), note) for note, number in table.footnotes().items()]
    return footnotes + [("", note) for note in table.notes]


def marked_remarks(table: Table) -> list[tuple[str, str]]:
    """The same, and what the signs of the marks mean, for tables that have any."""
    signs = legend({cell.mark for row in table.rows for cell in row.cells.values()})
    return remarks(table) + ([("", signs)] if signs else [])
