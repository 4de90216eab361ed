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

from leakboard.core.memory import keep_freed_memory

#: imported once by the fork server, so that a child starts in milliseconds; contains no plugin of the user
PRELOAD = [
    "torch",
    "torch._dynamo",  # torch.func and torch.optim import it at their first call: otherwise seconds in every cell
    "sklearn.datasets",
    "sklearn.neural_network",
    "scipy.optimize",
    "leakboard.leaderboard.cells.run_cell",
    "leakboard.leaderboard.cells.train",
    "leakboard.leaderboard.engine.worker",
    "leakboard.leaderboard.cells.preload",
]
#: whether this process, or the fork server that it comes from, has limited its threads
_limited = False


@cache
def context() -> BaseContext:
    """A fork server if available (20 ms per process), otherwise spawn. Children share nothing with their parent."""
    # macOS can fork, but its system libraries do not survive it
    forks = "forkserver" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    method = "forkserver" if forks else "spawn"
    chosen = multiprocessing.get_context(method)
    if method == "forkserver":
        chosen.set_forkserver_preload(PRELOAD)
    return chosen


def limit_to_one_thread() -> None:
    """One thread per process: with other work on the machine, two threads are 2 to 8 times slower (see DESIGN).

    A child of the fork server inherits the limits of all libraries that are loaded there.
    """
    global _limited
    if _limited:
        return
    import torch
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    threadpool_limits(1)  # the pools of numpy and scikit-learn: the last bits must not depend on the cores
    keep_freed_memory()
    _limited = True


def obey_engine() -> None:
    """End when the engine ends, even if it was killed, and ignore Ctrl-C: the engine ends its processes itself.

    With its own process group, the engine can also end what a plugin forked.
    """
    with suppress(PermissionError):  # the leader of a session already has a group
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_engine, daemon=True).start()


def _die_with_engine() -> None:
    engine = multiprocessing.parent_process()  # the process that asked the fork server, not the fork server itself
    if engine is not None:
        engine.join()
        if os.getpgrp() == os.getpid():  # also end what a plugin forked
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def print_into(path: Path) -> None:
    """Append the output of this process to a file: the terminal is reserved for the progress display."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
