"""A small site for the tests here: every goal, two boards of which one has a warning, all documents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from leakboard.core.registry import ROOT
from leakboard.leaderboard.page.charts.base import Chart
from leakboard.leaderboard.page.charts.collect import Drawn, save_charts
from leakboard.leaderboard.page.page import write_page
from leakboard.leaderboard.ranking.scoreboard import scoreboards
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.site.boards import SiteBoard
from leakboard.leaderboard.site.site import build_site
from leakboard.leaderboard.tables.all_cells import cell_tables
from tests.leaderboard.page.test_browser import browser, visit  # noqa: F401
from tests.leaderboard.page.test_charts import a_run, boards

WARNING = "These records have a fault:\n- The clip bound was tuned for none of them.\n- The seed is 0."


def site_board(
    name: str, records: list[Record], warning: str = "", description: str = "Digits.", charts: int = 0
) -> SiteBoard:
    """A published board of these records. Charts take long, and other tests look at all of them: few are drawn."""
    rankings = boards(records)
    scores = tuple(scoreboards(rankings, records))

    def few(into: Path, given: Iterable[Chart]) -> list[Drawn]:
        return save_charts(into, list(given)[:charts])

    def report(folder: Path) -> Path:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("leakboard.leaderboard.page.page.save_charts", few)
            return write_page(
                folder,
                title=name,
                description=description,
                warning=warning,
                boards=rankings,
                scoreboards=scores,
                tables=cell_tables(records),
                records=records,
                originals=lambda _: None,
                reconstructions=lambda _: None,
            )

    notes = ("Records: 1 verified.",)
    return SiteBoard(name, description, warning, notes, tuple(records), tuple(rankings), scores, report)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished site. Tests must not write into it."""
    given = [site_board("first", a_run(), WARNING, charts=1), site_board("second", a_run())]
    return build_site(given, ROOT, tmp_path_factory.mktemp("site") / "out").parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the two documents that the navigation leads to."""
    folder = tmp_path / "checkout"
    (folder / "docs").mkdir(parents=True)
    doors = ("Test my defense", "Test my attack", "Read the board", "Publish a table")
    (folder / "docs" / "index.md").write_text("\n".join(f"## {door}" for door in doors))
    (folder / "docs" / "publishing.md").write_text("# Publishing")
    return folder
