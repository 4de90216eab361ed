"""The folder for data that can be recomputed: the index of plugins, shadow models, generators, downloads."""

from __future__ import annotations

import os
from pathlib import Path

#: environment variable that names another folder
VARIABLE = "LEAKBOARD_CACHE"


def cache_folder() -> Path:
    """The user's cache folder: $LEAKBOARD_CACHE, else $XDG_CACHE_HOME/leakboard, else ~/.cache/leakboard."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "leakboard"
