"""Time limits without a clock: an attack's time ends when a test says so, however fast the machine is."""

from __future__ import annotations

import math

import pytest

from leakboard.attacks.base import Knowledge

#: deadlines on the clock of `Knowledge.deadline`, which started with the machine
LONG_AGO, NEVER = 0.0, math.inf


def time_ends_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attack has time without end the first `looks` times that it asks, and none after that."""
    left = [math.inf] * looks

    def time_left(self: Knowledge) -> float:
        return left.pop() if left else -1.0

    monkeypatch.setattr(Knowledge, "time_left", time_left)
