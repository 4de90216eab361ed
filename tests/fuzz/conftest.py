"""The count of examples, printed when a fuzz session ends."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import RAN, REFUSED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a target: how many examples ran, and how many of them were refused in one sentence."""
    for target, count in sorted(RAN.items()):
        terminalreporter.write_line(f"fuzz {target:28} {count:6} examples, {REFUSED[target]:6} refused in one sentence")
