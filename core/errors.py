"""Errors that a user caused and can fix: one sentence each, never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake in the user's input, or several.

    Each argument is one sentence that says what was wrong, what is allowed and what was given. The command line prints
    one line for each and exits with 2.
    """

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence per mistake."""
        return tuple(map(str, self.args))

    def __str__(self) -> str:
        return " ".join(self.problems)


class Problems:
    """Collects the refusals of several checks, so that a user sees all mistakes at once.

    >>> problems = Problems()
    >>> for given in ("fedsdg", "fedsgd", "mp-pd"):
    ...     with problems.collected():
    ...         if given != "fedsgd":
    ...             raise UserError(f"There is no defense '{given}'.")
    >>> problems.refuse()
    Traceback (most recent call last):
    leakboard.core.errors.UserError: There is no defense 'fedsdg'. There is no defense 'mp-pd'.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """A check whose `UserError` is noted; the next check goes on."""
        try:
            yield
        except UserError as error:
            self.found += [problem for problem in error.problems if problem not in self.found]

    def refuse(self) -> None:
        """Raise one `UserError` with everything that was noted; do nothing if there was nothing."""
        if self.found:
            raise UserError(*self.found) from None


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
