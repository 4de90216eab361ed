"""A log keeps its start and its end, however much is printed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leakboard.leaderboard.engine.executors.logs import GAP, KEPT, trim_log


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %09d\n" % number for number in range(first, last))


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(bytes(2 * KEPT))
    trim_log(log)
    assert log.read_bytes() == bytes(2 * KEPT)


@pytest.mark.parametrize("times", [1, 3])
def test_a_long_log_keeps_its_start_and_its_end_while_somebody_appends(times: int, tmp_path: Path) -> None:
    log, count = tmp_path / "a.log", 200_000
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # as a job's process holds it
    try:
        for part in range(times):
            os.write(handle, lines(part * count, (part + 1) * count))
            trim_log(log)
        os.write(handle, b"the end\n")
    finally:
        os.close(handle)
    kept = log.read_bytes()
    everything = lines(0, times * count) + b"the end\n"
    assert kept == everything[:KEPT] + GAP + everything[-KEPT - len(b"the end\n") :]


def test_a_log_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    trim_log(tmp_path / "none.log")
    assert not (tmp_path / "none.log").exists()
