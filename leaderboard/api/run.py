"""A run with its results: tables, data frames, views and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.sources import PACKAGES
from leakboard.core.terminal import plain
from leakboard.leaderboard.api.checks import path_of, plugin_paths
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.run_folder import RunFolder
from leakboard.leaderboard.publishing.submit import open_any
from leakboard.leaderboard.records.record import NO_TRAINING, Record
from leakboard.leaderboard.tables.table import Table

if TYPE_CHECKING:  # at run time only who asks for a table, a frame or a view loads what it needs
    import pandas as pd
    from torch import Tensor

    from leakboard.federation.view import View
    from leakboard.leaderboard.ranking.leaderboards import Board
    from leakboard.leaderboard.ranking.scoreboard import Scoreboard


@dataclass(frozen=True)
class Run:
    """A run, or a folder of published records: what `lb.evaluate` and `lb.open_run` return.

    Nothing is computed again: every method reads the records that lie in the folder.
    """

    opened: RunFolder

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        return self.opened.folder

    @property
    def name(self) -> str:
        """The name of the suite."""
        return self.opened.file.suite

    @property
    def records(self) -> tuple[Record, ...]:
        """The records that are there, in the order of the plan: one per cell, failed cells included."""
        return self.opened.records

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The cells of the run, computed or not; published records have none."""
        return self.opened.jobs

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of these records, such as how many lie in the folder and are not shown."""
        return self.opened.notes

    @property
    def warning(self) -> str:
        """What is wrong with the whole board; empty where nothing is known."""
        return self.opened.warning

    @property
    def missing(self) -> int:
        """How many cells have no record yet."""
        return max(0, len(self.jobs) - len(self.records))  # published records have no jobs here

    def untabled(self) -> list[str]:
        """The titles of tables of which no cell is there yet."""
        from leakboard.leaderboard.ranking.leaderboards import untabled

        return untabled(self.records, self.opened.waiting)

    @cached_property
    def _boards(self) -> list[Board]:
        from leakboard.leaderboard.ranking.leaderboards import ranking_boards

        file, remarks = self.opened.file, self.opened.remarks
        found = ranking_boards(self.records, file.control, file.utility_gate, self.opened.waiting)
        return [replace(b, table=replace(b.table, notes=(*remarks, *b.table.notes))) for b in found]

    def boards(self) -> list[Board]:
        """The rankings with the evidence behind them; computed once, for tables, frames and the page."""
        return self._boards

    @cached_property
    def _scoreboards(self) -> list[Scoreboard]:
        from leakboard.leaderboard.ranking.scoreboard import scoreboards

        found = scoreboards(self.boards(), self.records)
        return [replace(board, notes=(*self.opened.remarks, *board.notes)) for board in found]

    def scoreboards(self) -> list[Scoreboard]:
        """The scoreboards as values, one per data set: rows, cells with value, interval, mark, attack and records."""
        return self._scoreboards

    def tables(
        self,
        *,
        all: bool = False,
        phases: bool = False,
        paper: bool = False,
        target: float | None = None,
        scoreboard: bool = False,
    ) -> list[Table]:
        """The scoreboard of each data set, then the ranking tables; with `scoreboard` the scoreboards alone.

        `phases` gives the phase times instead, `paper` the paper's tables beside its own figures (`target`: the
        accuracy in per cent that time is measured to). `all` adds the phase times and the list of all cells.
        """
        from leakboard.leaderboard.tables.all_cells import cell_tables
        from leakboard.leaderboard.tables.paper_tables import paper_tables
        from leakboard.leaderboard.tables.phase_times import phase_tables

        if paper:
            found = paper_tables(self.records, target)
        elif phases:
            found = phase_tables(self.records)
        else:
            found = [board.table() for board in self.scoreboards()]
            found += [] if scoreboard else [board.table.without_empty() for board in self.boards()]
        if all:
            lists = [table.without_empty() for table in cell_tables(self.records)]
            found = [*found, *([] if phases else phase_tables(self.records)), *lists]
        return found

    def scoreboard(self) -> pd.DataFrame:
        """One row per defense, one column per threat and question, its mark and the worst attack's name beside it.

        Scores and accuracies are in the units of the tables: per cent, or AUC where the column says so.
        """
        from leakboard.leaderboard.api.frames import scoreboard_frame

        return scoreboard_frame(self.scoreboards())

    def evidence(self, defense: str, question: str = "", *, colour: bool = False) -> str:
        """What is behind the marks of a defense: verdict, worst attack, score and record, question by question.

        With `question`, a part of a column's title, only that one, followed by the record itself with its images.
        """
        from leakboard.leaderboard.api.show import evidence

        return evidence(self.opened, self.scoreboards(), defense, question, colour=colour)

    def frame(self) -> pd.DataFrame:
        """All scores, tidy: one row per record and metric; a cell without scores has one row with its reason."""
        from leakboard.leaderboard.api.frames import tidy_frame

        return tidy_frame(self.records)

    def view(self, threat: str, *, defense: str = "", dataset: str = "", seed: int | None = None) -> View:
        """What the parties of a threat saw in a training of this run: messages, their own state, keys and records.

        Without `defense`, `dataset` or `seed`, the first training of the run is taken. The threat `server:active` opens
        a training in which the server deviates, every other threat an honest one.
        """
        from leakboard.leaderboard.api.views import open_view_of

        return open_view_of(self.opened, threat, defense=defense, dataset=dataset, seed=seed)

    def status(self) -> str:
        """What is done, what is left and what failed, in a few lines."""
        from leakboard.leaderboard.engine.status import describe

        return describe(self.folder)

    def complaints(self) -> list[str]:
        """A line for every cell that did not work; one for all cells of a failed training, and one for all skips."""
        from leakboard.leaderboard.ranking.silence import diverged

        broken = [record for record in self.records if record.status not in ("ok", "skipped")]
        untrained = [record for record in broken if record.reason.startswith(NO_TRAINING)]
        lines = [f"{r.status}: {r.cell.slug}: {r.reason}" for r in broken if not r.reason.startswith(NO_TRAINING)]
        whole = Counter((r.cell.training.defense.label, r.cell.training.seed, r.reason) for r in untrained)
        lines += [f"failed: {n} cells of {name} (seed {seed}): {why}" for (name, seed, why), n in whole.items()]
        for name in dict.fromkeys(record.cell.training.defense.label for record in self.records):
            told = diverged(record for record in self.records if record.cell.training.defense.label == name)
            lines += [f"diverged: {name}: {told}"] if told else []
        skipped = Counter(record.cell.attack.label for record in self.records if record.status == "skipped")
        if skipped:
            attacks = ", ".join(f"{label} {count}" for label, count in sorted(skipped.items()))
            lines.append(f"skipped: {skipped.total()} cells, each with its reason on the page ({attacks})")
        return [plain(line) for line in lines]

    @property
    def page(self) -> Path:
        """The page's file, whether it is there or not."""
        return self.opened.report_folder / "index.html"

    def has_page(self) -> bool:
        """Whether there is a page that is newer than everything it is made of: records, plan, code."""
        try:
            written = self.page.stat().st_mtime_ns
            return all(path.stat().st_mtime_ns <= written for path in self._page_inputs())
        except OSError:
            return False

    def _page_inputs(self) -> list[Path]:
        records = self.opened.records_folder
        code = [path for package in PACKAGES for path in (registry.ROOT / package).rglob("*.py")]
        assets = (registry.ROOT / "leaderboard" / "page" / "assets").iterdir()
        plugins = {Path(file) for job in self.jobs for file in job.plugin_files}
        return [self.folder / "run.json", records, *records.iterdir(), *code, *assets, *plugins]

    def write_page(self, folder: Path | None = None) -> Path:
        """Write the page: tables, cards, figures and reconstructions; returns its file.

        It goes to the run's own folder `report`, unless another folder is given.
        """
        from torch import set_num_threads

        from leakboard.leaderboard.page.images import originals, reconstructions
        from leakboard.leaderboard.page.page import write_page
        from leakboard.leaderboard.tables.all_cells import cell_tables
        from leakboard.leaderboard.tables.phase_times import phase_tables

        set_num_threads(1)  # a few images at a time: two threads would only wait for each other
        opened = self.opened
        folder = folder or opened.report_folder

        def truth(record: Record) -> Tensor | None:
            return originals(record, opened.job_of(record))

        try:
            return write_page(
                folder,
                title=f"LeakBoard: {opened.file.suite}",
                description=". ".join(filter(None, [opened.file.description, *opened.notes])),
                warning=opened.warning,
                boards=self.boards(),
                scoreboards=self.scoreboards(),
                tables=[*phase_tables(self.records), *cell_tables(self.records)],
                records=self.records,
                originals=truth,
                reconstructions=lambda record: reconstructions(record, opened.records_folder, truth(record)),
                claims={name: str(entry.get("claim", "")) for name, entry in registry.entries("defense").items()},
            )
        except OSError as error:
            raise UserError(f"The page cannot be written to {folder}: {error.strerror}.") from None

    def save_figures(self, folder: str | Path, formats: Sequence[str] = ("svg", "png", "pdf")) -> list[Path]:
        """Write all figures of the page into a folder, one file per format, on white paper; returns the files."""
        from leakboard.leaderboard.page.figures import save_figures
        from leakboard.leaderboard.page.images import originals, reconstructions

        opened, where = self.opened, path_of("the folder of the figures", folder)

        def truth(record: Record) -> Tensor | None:
            return originals(record, opened.job_of(record))

        def answer(record: Record) -> Tensor | None:
            return reconstructions(record, opened.records_folder, truth(record))

        try:
            return save_figures(where, self.boards(), self.records, truth, answer, formats)
        except OSError as error:
            raise UserError(f"The figures cannot be written to {where}: {error.strerror}.") from None

    def __repr__(self) -> str:
        left = f", {self.missing} cells are not there yet" if self.missing else ""
        return f"<Run {self.name} in {self.folder}: {len(self.records)} records{left}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the scoreboard with its marks."""
        from leakboard.leaderboard.tables.formats import to_html

        return "".join(to_html(board.table()) for board in self.scoreboards())


def open_run(folder: str | Path, *, plugins: str | Path | Iterable[str | Path] = ()) -> Run:
    """Open the folder of a run, finished or not, or one of published records; files with plugins are loaded first."""
    where = path_of("the folder of a run", folder)
    for file in plugin_paths(plugins):
        registry.load_file(file)
    return Run(open_any(where))
