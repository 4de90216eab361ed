"""Builds the site: a folder of static pages that loads nothing from the network and is either complete or absent.

What records and plugins say counts as hostile, as on the page of a run: templates escape it, and a content security
policy allows nothing to run or load except the files of the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from leakboard.core.errors import UserError
from leakboard.core.files import whole_folder, write_bytes, write_text
from leakboard.leaderboard.page.page import ASSETS as PAGE_ASSETS
from leakboard.leaderboard.page.page import ScoreLinks, environment
from leakboard.leaderboard.ranking.scoreboard import Scoreboard, ScoreColumn, ScoreRow
from leakboard.leaderboard.site.boards import SiteBoard, warnings
from leakboard.leaderboard.site.documents import documents, up
from leakboard.leaderboard.site.plugins import FOLDERS, Kind, page_of, plugin_pages
from leakboard.leaderboard.tables.formats import to_html
from leakboard.leaderboard.tables.table import Table

ASSETS = Path(__file__).parent / "assets"
#: a folder with this file was written by us, so it may be replaced
MARKER = ".leakboard-site"
LINK = 'href="#record='


def build_site(boards: Sequence[SiteBoard], root: Path, out: Path) -> Path:
    """Write the site of these boards and of the documents below `root` to `out`; returns its front page.

    An older site at `out` is replaced when the new one is complete. Any other folder is refused.
    """
    if not (root / "docs").is_dir():
        raise UserError(f"A site needs the documents of a checkout: there is no folder docs in {root}.")
    if not boards:
        raise UserError("A site needs at least one published board; none is here.")
    refuse_other_folders(out)
    out = out.resolve()  # such as `.`, which has no name of its own
    try:
        with whole_folder(out) as folder:
            _write(folder, boards, root)
    except OSError as error:
        raise UserError(f"The site cannot be written to {out}: {error.strerror}.") from None
    return out / "index.html"


def refuse_other_folders(out: Path) -> None:
    """Refuse to replace anything that is not a site; an empty folder may be filled."""
    ours = (out / MARKER).is_file() or (out.is_dir() and not any(out.iterdir()))
    if out.exists() and not ours:
        raise UserError(f"{out} exists and is not a site: give another folder, or remove it yourself.")


def _write(folder: Path, boards: Sequence[SiteBoard], root: Path) -> None:
    for assets in (PAGE_ASSETS, ASSETS):
        for asset in sorted(path for path in assets.iterdir() if path.suffix in (".css", ".js", ".svg")):
            write_bytes(folder / "assets" / asset.name, asset.read_bytes())
    templates = _templates()
    page = partial(_page, templates, folder)
    kinds: tuple[Kind, ...] = ("defense", "attack")
    plugins = {kind: plugin_pages(kind, boards) for kind in kinds}
    page("index.html", "front.html.jinja", boards=boards, warnings=warnings(boards))
    for kind, found in plugins.items():
        page(f"{FOLDERS[kind]}/index.html", "plugins.html.jinja", kind=kind, plugins=found, warnings=warnings(boards))
        for plugin in found:
            page(plugin.page, "plugin.html.jinja", plugin=plugin, warnings=warnings(plugin.boards))
    for document in documents(root):
        page(document.page, "document.html.jinja", document=document)
        for file in document.files:
            write_bytes(folder / file, (root / file).read_bytes())
    for board in boards:
        board.write_report((folder / board.page).parent)
        _add_navigation(folder / board.page, board.page, templates)
    write_text(folder / MARKER, "Written by `leakboard site`, which may replace this folder.\n")


def _page(templates: Environment, folder: Path, path: str, template: str, **values: Any) -> None:
    """Render a template to a page. `top` is the way back to the top of the site."""
    text = templates.get_template(template).render(top=up(path), path=path, **values)
    write_text(folder / path, text)


def _add_navigation(file: Path, path: str, templates: Environment) -> None:
    """Put the site's navigation on the page of a board, which knows nothing of a site."""
    before = file.read_text(encoding="utf-8")
    bar = templates.get_template("navigation.html.jinja").render(top=up(path), path=path)
    style = f'<link rel="stylesheet" href="{up(path)}assets/site.css">'
    write_text(file, before.replace("</head>", f"{style}\n</head>", 1).replace("<body>", f"<body>\n{bar}", 1))


def _templates() -> Environment:
    """The templates of the site, which use those of a run's page."""
    made = environment(ASSETS)
    made.globals |= {"page_of": page_of, "score_links": SiteLinks, "table_html": table_html}
    return made


class SiteLinks(ScoreLinks):
    """Where a scoreboard leads in the site: a defense to its page, a mark to the record on the board's page."""

    def __init__(self, board: SiteBoard, top: str) -> None:
        self.board = board
        self.top = top

    def defense(self, board: Scoreboard, row: ScoreRow) -> str:
        """The page of a defense."""
        here = (board.dataset, row.defense)
        name = next(card.name for card in self.board.cards if (card.dataset, card.label) == here)
        return f"{self.top}{page_of('defense', name)}"

    def mark(self, board: Scoreboard, row: ScoreRow, column: ScoreColumn) -> str:
        """The record behind a mark; of several seeds the first. Empty where there is none."""
        keys = row.cells[column.name].records
        link = self.board.link(keys[0]) if keys else ""
        return f"{self.top}{link}" if link else ""


def table_html(table: Table, board: SiteBoard, top: str) -> Markup:
    """A table whose links lead to the records on the board's page."""
    return Markup(to_html(table).replace(LINK, f'href="{top}{board.page}#record='))  # to_html escapes all text
