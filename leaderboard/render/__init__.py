"""Tables as Markdown, CSV, JSON, LaTeX, terminal text and HTML.

Names in a table come from plugins and records, so all text counts as hostile: each format escapes it its own way.
"""

from leaderboard.render.data import to_csv, to_json
from leaderboard.render.html import to_html
from leaderboard.render.latex import _LATEX as _LATEX  # for the test that knows every command that may appear
from leaderboard.render.latex import to_latex
from leaderboard.render.markdown import to_markdown
from leaderboard.render.terminal import to_terminal

__all__ = ["to_csv", "to_html", "to_json", "to_latex", "to_markdown", "to_terminal"]
