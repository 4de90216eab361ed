"""The data frames of a run say what its tables and records say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import leakboard as lb
from leakboard.leaderboard.api.frames import FRAME_COLUMNS
from leakboard.leaderboard.publishing.submit import PUBLISHED
from tests.leaderboard.runs import TINY_CELLS


@pytest.fixture(scope="module")
def run(tiny_run: Path) -> lb.Run:
    return lb.open_run(tiny_run)


def test_the_tidy_frame_has_a_row_for_every_record_and_metric(run: lb.Run) -> None:
    frame = run.frame()
    assert tuple(frame.columns) == FRAME_COLUMNS
    assert len(frame) == sum(len(record.scores) for record in run.records)
    assert frame["key"].nunique() == TINY_CELLS
    for record in run.records:
        own = frame[frame["key"] == record.key].set_index("metric")
        for name, score in record.scores.items():
            (value,) = own.loc[[name], "value"].tolist()
            assert pd.isna(value) if score.value is None else value == score.value


def test_a_cell_without_scores_has_one_row_with_its_reason(run: lb.Run) -> None:
    from leakboard.leaderboard.api.frames import tidy_frame

    failed = run.records[0].model_copy(update={"status": "failed", "reason": "it broke", "scores": {}})
    (row,) = tidy_frame([failed]).to_dict("records")
    assert (row["status"], row["reason"]) == ("failed", "it broke")
    assert pd.isna(row["metric"])


def test_the_scoreboard_has_the_numbers_of_the_tables(run: lb.Run) -> None:
    board = run.scoreboard()
    assert list(board["defense"]) == ["fedsgd"]
    assert list(board.columns) == [
        "dataset",
        "defense",
        "accuracy",
        "server: images recovered",
        "server: images recovered (mark)",
        "server: images recovered (attack)",
        "client: membership AUC",
        "client: membership AUC (mark)",
        "client: membership AUC (attack)",
        "cost of a round",
    ]
    for title, key in (("server: images recovered", "identified"), ("client: membership AUC", "auc")):
        (row,) = next(b for b in run.boards() if key in b.table.rows[0].cells).table.rows
        assert board[title][0] == row.cells[key].value
        assert board[f"{title} (attack)"][0] == row.cells["attack"].value
    assert "<table" in run._repr_html_()


@pytest.mark.parametrize("name", sorted(path.name for path in PUBLISHED.iterdir() if path.is_dir()))
def test_published_boards_are_scoreboards(name: str) -> None:
    board = lb.results(name)
    assert len(board) > 1
    assert board["accuracy"].between(0, 100).all()
    assert any(column.startswith("server: images recovered") for column in board.columns)
    assert not board.isna().all().any()


def test_an_unknown_board_is_one_sentence() -> None:
    with pytest.raises(lb.UserError, match="There is no published board 'quik': did you mean 'quick'"):
        lb.results("quik")


def test_without_published_records_it_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakboard.leaderboard.api.published.PUBLISHED", tmp_path)
    with pytest.raises(lb.UserError, match="not part of the installed package: clone the repository"):
        lb.results("quick")


def test_a_folder_of_published_records_is_a_name_too() -> None:
    name = sorted(path.name for path in PUBLISHED.iterdir() if path.is_dir())[0]
    assert lb.results(PUBLISHED / name).equals(lb.results(name))
