"""The server that our processes are forked from: started once, with torch preloaded, which takes it some seconds."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.registry import ROOT
from leaderboard.processes import context

#: what processes print that have no log of their own yet
OTHER_PRINTS = "logs/processes.log"
#: the log of a server that was started early: a file without a name, until the run has a folder for it
_unnamed: int | None = None


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
        _name(log)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    try:
        _ensure_running(file)
    finally:
        os.close(file)


def start_early(run: Path) -> None:
    """Let the server load torch while this process does so too; where that cannot be, it is started when it is needed.

    The run may still be refused, so nothing is written: the log gets its name from the first `start_fork_server`.
    """
    global _unnamed
    if context().get_start_method() != "forkserver" or not hasattr(os, "O_TMPFILE") or _unnamed is not None:
        return
    above = next(folder for folder in run.absolute().parents if folder.is_dir())
    with suppress(OSError):  # a file system without such files, or a folder that nobody may write to
        _unnamed = os.open(above, os.O_TMPFILE | os.O_WRONLY | os.O_APPEND, 0o644)
        _ensure_running(_unnamed)


def _name(log: Path) -> None:
    """Give the log of a server that was started early its name."""
    global _unnamed
    if _unnamed is not None:
        file, _unnamed = _unnamed, None
        with suppress(OSError):  # there is one already, or it lies on another file system
            os.link(f"/proc/self/fd/{file}", log, src_dir_fd=file)  # without src_dir_fd the link itself would be linked
        os.close(file)


def _ensure_running(prints: int) -> None:
    before, path = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([path] if path else [])])
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
