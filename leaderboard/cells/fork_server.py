"""The server from which our processes are forked: started once, with torch preloaded, which takes some seconds."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakboard.core.registry import importing_us
from leakboard.leaderboard.cells.processes import context

#: the log of processes that do not have their own log yet
OTHER_PRINTS = "logs/processes.log"


def start_fork_server(run: Path) -> None:
    """Make sure that the fork server runs; if it was killed, start a new one.

    It starts with Ctrl-C blocked, so that the signal reaches neither it nor its children: the engine ends them. It must
    find our modules from any working directory, otherwise each child would import them again. What it and its children
    print before they have their own log goes to `OTHER_PRINTS` of the run: the traceback of a process whose pipe broke
    because another was killed does not belong on the terminal.
    """
    if context().get_start_method() != "forkserver":
        return
    log = run / OTHER_PRINTS
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    try:
        _ensure_running(file)
    finally:
        os.close(file)


def _ensure_running(prints: int) -> None:
    before, path = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = importing_us()["PYTHONPATH"]
    try:
        with _printing_into(prints):
            multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _printing_into(file: int) -> Iterator[None]:
    """Processes that are started in this block print to this file."""
    terminal: dict[int, int] = {}
    try:
        for stream in (1, 2):
            with suppress(OSError):  # a stream that the caller closed stays closed
                terminal[stream] = os.dup(stream)
                os.dup2(file, stream)
        yield
    finally:
        for stream, before in terminal.items():
            os.dup2(before, stream)
            os.close(before)
