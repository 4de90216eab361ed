"""Text for a terminal."""

from __future__ import annotations

import shutil


def plain(text: str) -> str:
    """Text on one line without control characters: no escape sequence, no line break, no change of direction."""
    return "".join(char if char.isprintable() else " " for char in text)


def terminal_width() -> int:
    """The number of columns of the terminal; 120 without a terminal."""
    return shutil.get_terminal_size((120, 40)).columns
