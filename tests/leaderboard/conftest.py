"""The finished tiny run that many tests look at; it is computed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.leaderboard.runs import call, write_suite


@pytest.fixture(scope="session")
def tiny_suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="session")
def tiny_run(tiny_suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, made by two workers. Tests must not write into it."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    outcome = call("run", "--suite", tiny_suite, "--out", folder, "--workers", 2)
    assert outcome.code == 0, outcome.err
    return folder
