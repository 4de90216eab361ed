"""The formats of tables, one file per format. `formats()` finds them all, those from outside included."""

from leakboard.core.errors import unknown_name
from leakboard.core.registry import extensions
from leakboard.core.seeds import natural_order
from leakboard.leaderboard.tables.formats.base import Format
from leakboard.leaderboard.tables.formats.csv import to_csv
from leakboard.leaderboard.tables.formats.html import to_html
from leakboard.leaderboard.tables.formats.json import to_json
from leakboard.leaderboard.tables.formats.latex import to_latex
from leakboard.leaderboard.tables.formats.markdown import to_markdown
from leakboard.leaderboard.tables.formats.terminal import to_terminal

__all__ = [
    "Format",
    "find_format",
    "formats",
    "to_csv",
    "to_html",
    "to_json",
    "to_latex",
    "to_markdown",
    "to_terminal",
]


def formats() -> dict[str, Format]:
    """All formats by name, in natural order: those of this folder, of installed packages and of plugin files."""
    found = extensions(Format, __name__)  # type: ignore[type-abstract]
    return {name: found[name]() for name in natural_order(found)}


def find_format(name: str) -> Format:
    """The format of that name; a wrong name suggests the nearest."""
    found = formats()
    if name not in found:
        raise unknown_name("format", name, found)
    return found[name]
