"""Tests here start processes of attacks without a run around them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _attack_processes(fork_server: None) -> None:
    """The fork server is that of runs."""
