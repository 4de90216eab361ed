"""Fresh processes with torch preloaded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import cache
from multiprocessing.context import BaseContext
from pathlib import Path

#: imported once by the fork server, so that a child starts in milliseconds; no plugin among them
PRELOAD = [
    "torch",
    "torch._dynamo",  # what torch.func and torch.optim import at their first call: seconds in every cell otherwise
    "sklearn.datasets",
    "sklearn.neural_network",
    "scipy.optimize",
    "leakboard.leaderboard.cells.run_cell",
    "leakboard.leaderboard.cells.train",
    "leakboard.leaderboard.engine.worker",
]


@cache
def context() -> BaseContext:
    """A forkserver where there is one (20 ms a process), else spawn. Children share nothing with their parent."""
    # macOS can fork but its system libraries do not survive it
    forks = "forkserver" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    method = "forkserver" if forks else "spawn"
    chosen = multiprocessing.get_context(method)
    if method == "forkserver":
        chosen.set_forkserver_preload(PRELOAD)
    return chosen


def one_thread() -> None:
    """One thread a process: two are 2 to 8 times slower beside other work (measured, see DESIGN)."""
    import torch
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    threadpool_limits(1)  # numpy's and scikit-learn's own pools: the last bits must not depend on the cores


def obey_engine() -> None:
    """End when the engine ends, even if it was killed, and leave Ctrl-C to it: it ends the others itself.

    A group of its own lets the engine end what a plugin forked, too.
    """
    with suppress(PermissionError):  # the leader of a session has one already
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_engine, daemon=True).start()


def _die_with_engine() -> None:
    engine = multiprocessing.parent_process()  # who asked the fork server for this process, not the fork server
    if engine is not None:
        engine.join()
        if os.getpgrp() == os.getpid():  # what a plugin forked ends as well
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def print_into(path: Path) -> None:
    """Send the prints of this process to the end of a file: the terminal belongs to the progress."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
