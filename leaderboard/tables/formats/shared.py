"""What several formats share: text made safe for one line, footnote marks, remarks."""

from __future__ import annotations

import shutil

from leakboard.leaderboard.tables.table import Table

RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def plain(text: str) -> str:
    """Text on one line without control characters: no escape sequence, no line break, no change of direction."""
    return "".join(char if char.isprintable() else " " for char in text)


def terminal_width() -> int:
    """Columns of the terminal; 120 where there is none."""
    return shutil.get_terminal_size((120, 40)).columns


def raised(number: int | None) -> str:
    """A footnote's number in superscript digits; nothing for None."""
    return "" if number is None else "".join(RAISED[int(digit)] for digit in str(number))


def remarks(table: Table) -> list[tuple[str, str]]:
    """What stands under a table: footnotes with their marks, then the notes without."""
    footnotes = [(str(number), note) for note, number in table.footnotes().items()]
    return footnotes + [("", note) for note in table.notes]
