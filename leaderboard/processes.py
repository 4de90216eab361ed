"""Fresh processes with torch preloaded."""

from __future__ import annotations

import multiprocessing
import os
from functools import cache
from multiprocessing.context import BaseContext

#: imported once by the fork server, so that a child starts in milliseconds; no plugin among them
PRELOAD = [
    "torch",
    "sklearn.datasets",
    "sklearn.neural_network",
    "scipy.optimize",
    "leaderboard.cell",
    "leaderboard.training",
]


@cache
def context() -> BaseContext:
    """A forkserver where there is one (20 ms a process), else spawn. Children share nothing with their parent."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    chosen = multiprocessing.get_context(method)
    if method == "forkserver":
        chosen.set_forkserver_preload(PRELOAD)
    return chosen


def one_thread() -> None:
    """One thread a process: two are 2 to 8 times slower beside other work (measured, see DESIGN)."""
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
