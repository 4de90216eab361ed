"""The site of everything published."""

from __future__ import annotations

from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.core.registry import ROOT
from leakboard.leaderboard.api.checks import path_of
from leakboard.leaderboard.api.run import Run, open_run
from leakboard.leaderboard.publishing.submit import PUBLISHED, PUBLISHED_FILE
from leakboard.leaderboard.site.boards import SiteBoard
from leakboard.leaderboard.site.site import build_site, refuse_other_folders


def site(out: str | Path = "site", *, published: str | Path = PUBLISHED, checkout: str | Path = ROOT) -> Path:
    """Build one static site from all boards below `published` and the documents of a checkout.

    Returns the front page. The folder `out` is complete or absent, and an older site there is replaced.
    """
    target = path_of("the folder of the site", out)
    refuse_other_folders(target)  # before the boards are read, which takes seconds
    below = path_of("the folder of the published boards", published)
    folders = sorted(path.parent for path in below.glob(f"*/{PUBLISHED_FILE}"))
    if not folders:
        raise UserError(
            f"There is no published board below {below}. The installed package has none: clone the repository and give "
            "its folder leaderboard/published."
        )
    boards = [_board(open_run(folder)) for folder in folders]
    return build_site(boards, path_of("the folder of a checkout", checkout), target)


def _board(run: Run) -> SiteBoard:
    return SiteBoard(
        name=run.name,
        description=run.opened.file.description,
        warning=run.warning,
        notes=run.notes,
        records=run.records,
        rankings=tuple(run.boards()),
        scoreboards=tuple(run.scoreboards()),
        write_report=run.write_page,
    )
