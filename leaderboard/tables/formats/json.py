"""Tables as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from leakboard.leaderboard.tables.formats.base import Format
from leakboard.leaderboard.tables.table import Table


def to_json(tables: Sequence[Table]) -> str:
    """Everything that the tables hold, field by field; `schema` is the version of this form."""
    content = {"schema": 1, "tables": [asdict(table) for table in tables]}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)


class Json(Format):
    """One JSON object with all tables."""

    name = "json"

    def render(self, tables: Sequence[Table]) -> str:
        """One object for all tables."""
        return to_json(tables) + "\n"
