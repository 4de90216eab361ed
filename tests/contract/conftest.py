"""Tests run on one thread, as attacks do. Many of them replay a party in a process of its own."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _replays(fork_server: None) -> None:
    """The fork server is that of runs."""
