"""The server that our processes are forked from: started once, with torch preloaded, which takes it some seconds."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakboard.core.registry import importing_us
from leakboard.leaderboard.cells.processes import context

#: what processes print that have no log of their own yet
OTHER_PRINTS = "logs/processes.log"


def start_fork_server(run: Path) -> None:
    """Make sure that the fork server runs; where it was killed, a new one is started.

    It is started with Ctrl-C held back, which so reaches neither it nor its children: ending them is the engine's
    affair. And it must find our modules wherever the command was called, or each child would import them anew.
    What it and its children print before they have a log of their own goes to `OTHER_PRINTS` of the run: the traceback
    of a process whose pipe broke because another was killed is no news for the terminal.
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
    """What is started in the block prints to this file."""
    terminal: dict[int, int] = {}
    try:
        for stream in (1, 2):
            with suppress(OSError):  # a stream that the caller has closed stays so
                terminal[stream] = os.dup(stream)
                os.dup2(file, stream)
        yield
    finally:
        for stream, before in terminal.items():
            os.dup2(before, stream)
            os.close(before)
