"""Tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from leakboard.core.terminal import plain
from leakboard.leaderboard.tables.formats.base import Format
from leakboard.leaderboard.tables.table import Table

_EXTRAS = ("low", "high", "text", "mark", "note", "link")


def _csv(value: object) -> object:
    """A CSV field. Text that a spreadsheet would run as a formula gets a leading quote; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = plain(value)  # Python's writer does not quote a carriage return, which would begin a new line
    return f"'{text}" if text.lstrip().startswith(tuple("=+-@＝＋－＠")) else text


def to_csv(tables: Sequence[Table]) -> str:
    """One header for all tables, one line per row; `key:low`, `key:note` and so on follow a column that has any."""
    rows = [(table, row) for table in tables for group in table.groups() for row in group.ranked + group.muted]
    keys = dict.fromkeys(column.key for table in tables for column in table.columns)
    seen = {(k, extra) for _, r in rows for k, c in r.cells.items() for extra in _EXTRAS if getattr(c, extra)}
    seen |= {(k, end) for _, r in rows for k, c in r.cells.items() for end in ("low", "high") if getattr(c, end) == 0}
    fields = [(key, extra) for key in keys for extra in ("value", *_EXTRAS) if extra == "value" or (key, extra) in seen]
    captions = any(table.caption for table in tables)  # rankings name the targets of their scores there
    titles = ["table", *(["caption"] if captions else []), "section", "muted"]
    header = [*titles, *(key if extra == "value" else f"{key}:{extra}" for key, extra in fields)]
    if len(set(header)) < len(header):
        raise ValueError(f"Two columns of the CSV file would have the same name, rename a key: {', '.join(header)}.")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv, header))
    for table, row in rows:
        cells = [getattr(row.cells.get(key), extra, None) for key, extra in fields]
        about = [table.title, *([table.caption] if captions else []), row.section, int(row.muted)]
        writer.writerow(map(_csv, [*about, *cells]))
    return out.getvalue()


class Csv(Format):
    """Comma-separated values, one file for all tables."""

    name = "csv"

    def render(self, tables: Sequence[Table]) -> str:
        """One header, then the rows of all tables."""
        return to_csv(tables)
