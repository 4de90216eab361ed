"""The finished tiny run that many tests look at; it is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leakboard.federation.transcript import TRANSCRIPT_FILES
from tests.leaderboard.runs import call, write_suite


@pytest.fixture(scope="session")
def tiny_suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="session")
def tiny_run(tiny_suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a finished run, made by two workers. Tests must not write into it."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    outcome = call("run", "--suite", tiny_suite, "--out", folder, "--workers", 2, "--keep-transcripts", charts=True)
    assert outcome.code == 0, outcome.err
    kept = _transcripts(folder)
    assert kept
    yield folder
    # a test that called `run` here without --keep-transcripts would break others, depending on their order
    assert _transcripts(folder) == kept


def _transcripts(folder: Path) -> set[Path]:
    return {path for name in TRANSCRIPT_FILES for path in (folder / "trainings").glob(f"*/{name}")}
