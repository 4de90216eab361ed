"""Tables as Markdown, CSV, JSON, LaTeX, terminal text and HTML.

Names in a table come from plugins and records, so all text counts as hostile: each format escapes it its own way.
"""

from leakboard.leaderboard.tables.formats.data import to_csv, to_json
from leakboard.leaderboard.tables.formats.html import to_html
from leakboard.leaderboard.tables.formats.latex import (
    _LATEX as _LATEX,  # for the test that knows every command that may appear
)
from leakboard.leaderboard.tables.formats.latex import to_latex
from leakboard.leaderboard.tables.formats.markdown import to_markdown
from leakboard.leaderboard.tables.formats.terminal import to_terminal

__all__ = ["to_csv", "to_html", "to_json", "to_latex", "to_markdown", "to_terminal"]
