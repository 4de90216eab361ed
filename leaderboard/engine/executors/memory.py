"""How much memory processes hold, from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
GIB = 1024**3


def resident(process: int) -> int:
    """Bytes that a process and its descendants hold in memory; 0 where there is none, or no /proc to ask.

    Pages that processes share count for each of them: what the fork server preloaded, some 0.3 GiB a process.
    """
    found = 0
    # it may end while it is looked at
    with suppress(OSError, ValueError, IndexError):
        folder = PROC / str(process)
        found = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for thread in (folder / "task").iterdir():
            found += sum(resident(int(child)) for child in (thread / "children").read_text().split())
    return found
