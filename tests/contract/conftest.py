"""Many tests replay a party in a process of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _replays(fork_server: None) -> None:
    """The fork server is that of runs."""
