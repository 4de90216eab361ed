"""Logs of bounded length: a plugin that prints in a loop must not fill the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: bytes that a log keeps from its start, and as many from its end
KEPT = 100_000
GAP = b"\n[... left out: a log keeps 100 kB from its start and 100 kB from its end ...]\n"


def trim_log(path: Path) -> None:
    """Cut the middle out of a log that has become too long, in place: its processes go on appending to it.

    What they print in this very moment may be lost with the middle.
    """
    with suppress(OSError):
        if path.stat().st_size <= 2 * KEPT + len(GAP):
            return
        with path.open("r+b") as file:
            file.seek(-KEPT, os.SEEK_END)
            end = file.read(KEPT)
            file.seek(KEPT)
            file.write(GAP + end)
            file.truncate()
