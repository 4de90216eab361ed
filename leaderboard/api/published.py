"""What others measured: published boards, comparisons, submissions and their verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leakboard.core import registry
from leakboard.core.errors import UserError, unknown_name
from leakboard.leaderboard.api.checks import path_of, plugin_paths, weights_file
from leakboard.leaderboard.api.run import Run, open_run
from leakboard.leaderboard.publishing.compare import comparison
from leakboard.leaderboard.publishing.shadow_pools import get_pools, publish_pools
from leakboard.leaderboard.publishing.submit import PUBLISHED, PUBLISHED_FILE, Published
from leakboard.leaderboard.publishing.submit import submit as publish
from leakboard.leaderboard.publishing.verdicts import Depth, Verdict, mark_verified
from leakboard.leaderboard.publishing.verify import one_per_training
from leakboard.leaderboard.publishing.verify import verify as compute_again
from leakboard.leaderboard.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd


def boards() -> list[str]:
    """The names of the published boards that are here; an installed package has none of its own."""
    return sorted(path.parent.name for path in PUBLISHED.glob(f"*/{PUBLISHED_FILE}"))


def published(name: str | Path) -> Run:
    """A published board, by its name or by its folder, to be read like a run."""
    folder = path_of("the name of a published board", name)
    if (folder / PUBLISHED_FILE).is_file():
        return open_run(folder)
    known = boards()
    if not known:
        raise UserError(
            "The published records are not part of the installed package: clone the repository and give the folder, "
            f"such as lb.results('leakboard/leaderboard/published/{folder.name}')."
        )
    if str(name) not in known:
        raise unknown_name("published board", str(name), known)
    return open_run(PUBLISHED / str(name))


def board_of(name: str | Path) -> Published:
    """A published board by name (also `published:NAME`) or folder."""
    opened = published(name.removeprefix("published:") if isinstance(name, str) else name).opened
    if not isinstance(opened, Published):
        raise UserError(f"{name} is not a published board: give the folder of one, or its name.")
    return opened


def results(name: str | Path) -> pd.DataFrame:
    """The scoreboard of a published board: one row per defense, one column per threat and question.

    >>> list(results("quick").columns[:3])
    ['dataset', 'defense', 'accuracy']
    """
    return published(name).scoreboard()


def compare(first: str | Path | Run, second: str | Path | Run) -> list[Table]:
    """Two runs cell by cell, and every setting in which they differ; folders of runs or of published records."""
    one, two = (given if isinstance(given, Run) else open_run(given) for given in (first, second))
    return comparison(one.records, two.records)


def submit(run: str | Path | Run, to: str | Path | None = None, *, allow_dirty: bool = False) -> tuple[Path, int]:
    """Collect the records of a finished run for publishing; returns their folder and how many they are."""
    folder = run.folder if isinstance(run, Run) else Path(run)
    return publish(folder, Path(to) if to else PUBLISHED, allow_dirty)


def publish_shadows(run: str | Path | Run, board: str | Path) -> tuple[int, int]:
    """Add the shadow models that the attacks of a run used to a board; returns the numbers of pools and models."""
    opened, target = open_run(run.folder if isinstance(run, Run) else run).opened, board_of(board)
    trained = {record.training.key for record in target.records if record.training is not None}
    return publish_pools(target.folder, opened.jobs, trained)


def get_shadows(board: str | Path) -> tuple[int, int]:
    """Take the shadow models of a board into the cache; returns the numbers of pools and models that are new."""
    return get_pools(board_of(board).folder)


@dataclass(frozen=True)
class Verified:
    """A record that was computed again: in what it differs by more than its tolerance, and the note beside it."""

    file: Path
    verdict: Verdict
    differences: tuple[str, ...]
    note: Path | None = None


def verify(
    records: str | Path | Iterable[str | Path],
    *,
    data: str = "",
    plugins: str | Path | Iterable[str | Path] = (),
    lpips_weights: str | Path = "",
    mark: bool = False,
    depth: Depth = "training",
) -> Iterator[Verified]:
    """Compute records again and compare; one after the other, as they are asked for.

    The folder of a board stands for one record of each training, the one whose attack was fastest.
    `data` is the location of the data (`npz:FILE`); `plugins` are the files of the records' plugins, which are run.
    `mark` notes beside each record that agrees that it was verified, and how deep: with the `depth` `attack`, the
    attack runs on the replayed rounds of the published training; with `training`, the training runs again too.
    """
    files = plugin_paths(plugins)
    for file in files:
        registry.load_file(file)
    given = [Path(one) for one in ([records] if isinstance(records, str | Path) else records)]
    for path in (path for one in given for path in (one_per_training(one) if one.is_dir() else [one])):
        verdict = compute_again(path, data, weights_file(lpips_weights), files, depth=depth)
        found = tuple(verdict.differences())
        yield Verified(path, verdict, found, mark_verified(path, verdict) if mark and not found else None)
