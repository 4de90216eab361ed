"""Prints the number of examples at the end of a fuzz session."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import RAN, REFUSED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per target: the number of examples, and of those that were refused in one sentence."""
    for target, count in sorted(RAN.items()):
        terminalreporter.write_line(f"fuzz {target:28} {count:6} examples, {REFUSED[target]:6} refused in one sentence")
