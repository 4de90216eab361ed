"""The boards of this repository on data that comes with the package: CI replays each of their trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

import leakboard as lb
from leakboard.leaderboard.publishing.replays import MOST_BOARD, REPLAYS, board_size
from leakboard.leaderboard.publishing.submit import PUBLISHED, PUBLISHED_FILE, open_any

#: data sets that need no download
EMBEDDED = {"digits"}
WITH_SNAPSHOTS = [path.parent for path in sorted(PUBLISHED.glob(f"*/{REPLAYS}"))]


def is_embedded(board: Path) -> bool:
    return {record.cell.training.dataset.name for record in open_any(board).records} <= EMBEDDED


def test_there_is_a_board_to_replay_and_none_is_too_large() -> None:
    assert any(map(is_embedded, WITH_SNAPSHOTS))
    for board in WITH_SNAPSHOTS:
        assert (board / PUBLISHED_FILE).is_file()
        assert board_size(board) <= MOST_BOARD


@pytest.mark.slow
@pytest.mark.parametrize("board", WITH_SNAPSHOTS, ids=lambda board: str(board.name))
def test_a_board_on_embedded_data_is_replayed(board: Path) -> None:
    if not is_embedded(board):
        pytest.skip("its data is not in the package: `make verify-published` replays it")
    found = list(lb.verify(board, depth="attack"))
    assert len(found) == len(list((board / REPLAYS).iterdir()))
    assert {one.file.name: one.differences for one in found if one.differences} == {}
