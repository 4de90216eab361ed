"""Errors that a user caused and can fix: one sentence each, never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the user's input.

    The message is one sentence that says what was wrong, what is allowed and what was given. The
    command line prints it and exits with 2.
    """


class Unsupported(Exception):
    """A defense, attack or metric cannot work on its input; the cell is `skipped`.

    The message is the reason, as it will appear in the record.
    """


def nearest(given: str, allowed: Iterable[str]) -> str | None:
    """The allowed name most similar to the given one, or None if nothing is similar.

    >>> nearest("fedsdg", ["fedsgd", "mp-dp"])
    'fedsgd'
    """
    matches = difflib.get_close_matches(given.lower(), list(allowed), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> UserError:
    """The error for an unknown name: it suggests the nearest name and lists the known ones.

    >>> str(unknown_name("defense", "fedsdg", ["fedsgd"]))
    "There is no defense 'fedsdg': did you mean 'fedsgd'? Known: fedsgd."
    """
    names = list(allowed)
    guess = nearest(given, names)
    hint = f"did you mean '{guess}'? " if guess else ""
    return UserError(f"There is no {kind} '{given}': {hint}Known: {', '.join(names) or 'none'}.")
