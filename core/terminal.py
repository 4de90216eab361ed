"""Text for a terminal."""

from __future__ import annotations

import shutil
from typing import TextIO


def plain(text: str) -> str:
    """Text on one line without control characters: no escape sequence, no line break, no change of direction."""
    return "".join(char if char.isprintable() else " " for char in text)


def terminal_width() -> int:
    """The number of columns of the terminal; 100 without a terminal."""
    return shutil.get_terminal_size((100, 40)).columns


def shows_unicode(stream: TextIO) -> bool:
    """Whether the signs of our tables can be written to a stream; an old terminal has ASCII or Latin-1 alone.

    >>> import io
    >>> shows_unicode(io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    False
    """
    try:
        "✗✓ε→─".encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
