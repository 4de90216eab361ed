"""What a format is: one class in one file that turns tables into text.

A file here, a plugin file (`--plugin FILE.py`) or a module that an installed package names in the entry point group
`leakboard.formats` may define formats. `formats()` finds them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from leakboard.core.extensions import Extension
from leakboard.leaderboard.tables.table import Table


class Format(Extension, ABC):
    """A form in which tables are printed: `table --format NAME`.

    Names in a table come from plugins and records, so a format must escape all text.
    """

    #: what the user writes after `--format`
    name: ClassVar[str]
    #: begins each line of a warning that is printed before the tables; None where such lines would break the format:
    #: they go to the standard error instead
    comment: ClassVar[str | None] = None

    @abstractmethod
    def render(self, tables: Sequence[Table]) -> str:
        """All tables as one text."""
