"""A published board as the site needs it: its scoreboards, its verdicts, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from leakboard.core import registry
from leakboard.core.names import file_part
from leakboard.leaderboard.page.cards import Card, cards
from leakboard.leaderboard.page.page import anchor
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.ranking.scoreboard import Scoreboard
from leakboard.leaderboard.records.record import Record


@dataclass(frozen=True)
class SiteBoard:
    """A published board. `write_report` writes its own page, with all records, into a folder."""

    name: str
    description: str
    #: what is wrong with the whole board; empty where nothing is known
    warning: str
    notes: tuple[str, ...]
    records: tuple[Record, ...]
    rankings: tuple[Board, ...]
    scoreboards: tuple[Scoreboard, ...]
    write_report: Callable[[Path], object]

    @property
    def page(self) -> str:
        """The path of its page in the site."""
        return f"boards/{file_part(self.name)}/index.html"

    @cached_property
    def cards(self) -> list[Card]:
        """One card per data set and defense, the control first."""
        return cards(self.rankings, self.records, claims())

    def link(self, key: str) -> str:
        """The address of a record from the top of the site; empty for a record that the board does not have."""
        return f"{self.page}#{anchor(key)}" if key in self.by_key else ""

    @cached_property
    def by_key(self) -> dict[str, Record]:
        """The records by their keys, which are their ids on the page."""
        return {record.key: record for record in self.records}


def claims() -> dict[str, str]:
    """What each defense claims in its own words, by plugin name."""
    return {name: str(entry.get("claim", "")) for name, entry in registry.entries("defense").items()}


def warnings(boards: Iterable[SiteBoard]) -> list[tuple[list[str], list[str]]]:
    """What is wrong with boards: their names, and the lines of the warning. Boards with the same text share one."""
    found: dict[str, list[str]] = {}
    for board in boards:
        if board.warning:
            found.setdefault(board.warning, []).append(board.name)
    return [(names, text.splitlines()) for text, names in found.items()]


def with_records(boards: Sequence[SiteBoard], chosen: Callable[[Record], bool]) -> list[tuple[SiteBoard, list[Record]]]:
    """The boards that have records of a kind, with these records."""
    found = [(board, [record for record in board.records if chosen(record)]) for board in boards]
    return [(board, records) for board, records in found if records]
