"""What a chart is: one class in one file, with the numbers that it shows and their drawing.

A file here, a plugin file (`--plugin FILE.py`) or a module that an installed package names in the entry point group
`leakboard.charts` may define charts. `collect.py` finds them all.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from leakboard.core.extensions import Extension
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.records.record import Record

if TYPE_CHECKING:  # matplotlib takes seconds to load, and only drawing needs it
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Look:
    """The page's colours in one of its themes."""

    paper: str
    ink: str
    soft: str
    line: str
    accent: str
    alarm: str
    lightness: float


@dataclass(frozen=True)
class Chart(Extension, ABC):
    """One chart of a page; subclasses add the numbers that they draw as fields.

    `labels` tell the chart from others of its class, such as data set and threat. `caption` says how to read it.
    `description` tells its content in words, for readers who cannot see it.
    """

    #: unique; the first word of the file's name
    name: ClassVar[str]
    #: one sentence that says what the chart shows; the page prints it before the caption
    shows: ClassVar[str]
    #: charts of one data set stand on the page in this order
    order: ClassVar[int] = 100
    #: whether it shows reconstructions of all batch sizes; others show the smallest one, the attacker's best case
    all_batch_sizes: ClassVar[bool] = False

    labels: tuple[str, ...]
    title: str
    caption: str
    description: str = field(default="", kw_only=True)

    @classmethod
    def applies_to(cls, board: Board) -> bool:
        """Whether the chart is made from this leaderboard. All are used unless a subclass says otherwise."""
        return True

    @classmethod
    @abstractmethod
    def numbers(cls, boards: Sequence[Board], records: Sequence[Record]) -> list[Self]:
        """The charts of one data set, from the leaderboards that apply and all records; none where nothing applies."""

    @abstractmethod
    def draw(self, look: Look) -> Figure:
        """Draw the chart in the colours of a theme."""

    @property
    def stem(self) -> str:
        """The beginning of the file's name. No label can break out of the folder."""
        words = (re.sub(r"[^a-z0-9._+-]+", "_", text.lower())[:40].replace("+", "_and_") for text in self.labels)
        return "-".join(["chart", self.name, *words])
