"""Ctrl-C ends a command in good order; one more leaves at once. Neither leaves a traceback, however late it comes."""

from __future__ import annotations

import signal
import subprocess
import sys

from leakboard.core.registry import importing_us

#: a command that is interrupted while it works, and again by what runs when the interpreter ends
TWICE = """
import atexit, os, signal, sys
from leakboard.leaderboard.cli import main

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # a handler runs between two instructions
        pass

atexit.register(interrupt)
main._do = interrupt
sys.argv = ["leakboard", "list"]
sys.exit(main.main())
"""

#: a command that is interrupted again while it puts things in order
BUSY = """
def work(asked):
    try:
        interrupt()
    finally:
        interrupt()
main._do = work
"""


def listening() -> None:
    """A process that was started in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(code: str) -> tuple[int, str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=importing_us(), capture_output=True, text=True, preexec_fn=listening)
    return done.returncode, done.stderr


def test_a_second_ctrl_c_while_the_interpreter_ends_changes_nothing() -> None:
    code, told = run(TWICE)
    assert code == 130, told
    assert "Stopped." in told
    assert "Traceback" not in told


def test_a_second_ctrl_c_while_the_first_is_handled_leaves_at_once() -> None:
    code, told = run(TWICE.replace("main._do = interrupt", BUSY))
    assert code == 130, told
    assert "Stopped at once." in told
    assert "Traceback" not in told


def test_one_ctrl_c_says_what_is_kept() -> None:
    code, told = run(TWICE.replace("atexit.register(interrupt)", ""))
    assert code == 130, told
    assert "Stopped." in told
    assert "at once" not in told


def test_a_caller_keeps_its_own_handler() -> None:
    """Only a program of its own sets handlers: who calls `main([...])` keeps those that it has."""
    code = """
import signal
from leakboard.leaderboard.cli.main import main
main(["list", "defenses"])
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    assert run(code)[0] == 0
