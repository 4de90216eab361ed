"""The command line. Imports torch only where a command needs it, so that help and `list` answer at once."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from leakboard.core.errors import UserError
from leakboard.core.glossary import explained
from leakboard.leaderboard.api.catalogue import KINDS, load_installed, plugins
from leakboard.leaderboard.cli.options import Asked, ListOptions
from leakboard.leaderboard.cli.parser import complaint, complaints, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one sentence on stderr and exit code 2."""
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a program of its own
        signal.signal(signal.SIGINT, _stop)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that this terminal cannot show must not end a run
        sys.stdout.reconfigure(errors="backslashreplace")
    asked = parse(given)
    try:
        return _do(asked)
    except UserError as error:
        print(complaints(error.problems), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if signal.getsignal(signal.SIGINT) is _leave_at_once:  # all is stopped; the interpreter may end undisturbed
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("\nStopped. What was finished is kept: the same command goes on from there.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `... | head` closed the pipe: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:  # not about a file that somebody named
            raise
        print(complaint(f"{error.filename} cannot be used: {error.strerror}."), file=sys.stderr)
        return 2


def _stop(*_: Any) -> None:
    """The first Ctrl-C: end in good order. While that lasts, one more ends us at once."""
    signal.signal(signal.SIGINT, _leave_at_once)
    raise KeyboardInterrupt


def _leave_at_once(*_: Any) -> None:
    """A second Ctrl-C, while the first one is handled: all processes that we started end with us."""
    os.write(2, b"\nStopped at once. Finished work is kept: the same command continues from there.\n")
    os._exit(130)


def _do(asked: Asked) -> int:
    if isinstance(asked, ListOptions):
        return list_plugins(asked)
    load_installed()
    from leakboard.leaderboard.cli.commands import do

    return do(asked)


def list_plugins(asked: ListOptions) -> int:
    """Print the plugins of one kind, or of all."""
    found = {name: plugins(name) for name in ([asked.kind] if asked.kind else [*KINDS, "suites"])}
    if asked.json:
        print(json.dumps(found[asked.kind] if asked.kind else found, indent=1))
        return 0
    words = explained("\n".join(f"{item['name']}: {item['summary']}" for items in found.values() for item in items))
    if words:
        print("\n".join(words), end="\n\n")
    for name, items in found.items():
        print(f"{name} ({len(items)})")
        width = max((len(item["name"]) for item in items), default=0)
        for item in items:
            print(f"  {item['name']:{width}}  {item['summary']}")
        print()
    return 0
