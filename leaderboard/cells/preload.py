"""Imported by the fork server before it forks: what every child would otherwise import and set up again.

It holds code only, never data: our own plugins (a cell needs some twenty of them), the number of threads, and the
provenance of that code: the commit of the moment at which it was imported. Plugin files of the user are loaded by the
children that need them.
"""

from __future__ import annotations

import importlib
from contextlib import suppress

from leakboard.core import registry
from leakboard.leaderboard.cells.processes import limit_to_one_thread
from leakboard.leaderboard.records.provenance import commit, processor, versions

#: the plugins that a cell or a training needs
KINDS = ("goal", "metric", "dataset", "model", "defense", "attack")


def import_plugins() -> None:
    """Import our own plugins. One that cannot be imported fails in the job that asks for it, with its traceback."""
    for kind in KINDS:
        for entry in registry.entries(kind).values():
            with suppress(Exception):
                importlib.import_module(registry.module_name(registry.ROOT / entry["file"]))


def note_provenance() -> None:
    """Ask git and the installed packages once, not in every cell."""
    for known in (commit, processor, versions):
        known()


import_plugins()
note_provenance()
limit_to_one_thread()
