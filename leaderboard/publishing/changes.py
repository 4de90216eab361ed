"""The log of a board: one line per version with the groups that came and the ranks that changed."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.core.plugins import Settings
from leakboard.leaderboard.planning.run_folder import MAX_RECORD_BYTES
from leakboard.leaderboard.ranking.leaderboards import ranking_boards
from leakboard.leaderboard.records.record import CellSpec, Record

#: not `.json`: every file of that kind on a board is a record
CHANGES_FILE = "changes.jsonl"
Ranks = Mapping[tuple[str, str], int | None]


class RankChange(Settings):
    """A defense whose rank in a table changed; null: it was or is not ranked there."""

    table: str
    defense: str
    before: int | None
    after: int | None

    @property
    def line(self) -> str:
        """The change in words."""
        before, after = ("not ranked" if rank is None else f"rank {rank}" for rank in (self.before, self.after))
        return f"{self.defense}: {before} → {after} ({self.table})"


class Change(Settings):
    """A line of the log: what came with a version of the board."""

    version: int
    date: str
    records: int = Field(description="number of records that were written")
    groups: list[tuple[str, str, int]] = Field(description="data set, defense and seed of these records")
    ranks: list[RankChange] = Field(default_factory=list)


def ranks_of(records: Sequence[Record], control: str, gate: float, waiting: Sequence[CellSpec] = ()) -> Ranks:
    """The rank of every defense in every table of a board."""
    found: dict[tuple[str, str], int | None] = {}
    for board in ranking_boards(records, control, gate, waiting):
        title = ", ".join(filter(None, [board.place.title, board.place.size]))
        for row in board.table.rows:
            rank = row.cells["rank"].value if "rank" in row.cells else None
            found[title, str(row.cells["defense"].value)] = int(rank) if isinstance(rank, (int, float)) else None
    return found


def rank_changes(before: Ranks, after: Ranks) -> list[RankChange]:
    """The defenses whose rank differs, table by table."""
    keys = dict.fromkeys([*after, *before])
    pairs = [(key, before.get(key), after.get(key)) for key in keys]
    return [RankChange(table=key[0], defense=key[1], before=a, after=b) for key, a, b in pairs if a != b]


def read_changes(folder: Path) -> list[Change]:
    """The log of a board, oldest first; empty where there is none.

    Its lines are bounded as records are. The log itself is not: it grows with every version.
    """
    path = folder / CHANGES_FILE
    if not path.is_file():
        return []
    try:
        return [Change.model_validate_json(line) for line in _lines(path) if line.strip()]
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} cannot be read as the log of a board: {type(error).__name__}.") from None


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_RECORD_BYTES + 1)
            if len(line) > MAX_RECORD_BYTES:
                raise UserError(
                    f"In {path} a line of at most {MAX_RECORD_BYTES} bytes is read; line {number} is longer."
                )
            if not line:
                return
            yield line


def note_change(
    folder: Path, version: int, groups: Iterable[tuple[str, str, int]], records: int, ranks: list[RankChange]
) -> None:
    """Add a line to the log of a board."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    line = Change(version=version, date=today, records=records, groups=sorted(groups), ranks=ranks)
    lines = [change.model_dump_json() for change in [*read_changes(folder), line]]
    write_text(folder / CHANGES_FILE, "\n".join(lines) + "\n")
