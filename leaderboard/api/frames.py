"""The results of a run as data frames: the scoreboard, and all scores in one tidy table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from leakboard.leaderboard.ranking.scoreboard import Scoreboard, ScoreRow
from leakboard.leaderboard.records.record import Record

#: the last columns of the scoreboard: cost as a multiple of the control's, and why a row is not ranked
LAST = ("cost of a round", "not ranked")
#: of the tidy frame
FRAME_COLUMNS = (
    "dataset",
    "model",
    "defense",
    "attack",
    "goal",
    "about",
    "threat",
    "round",
    "batch_size",
    "seed",
    "status",
    "accuracy",
    "metric",
    "value",
    "unit",
    "reason",
    "key",
)


def scoreboard_frame(boards: Sequence[Scoreboard]) -> pd.DataFrame:
    """One row per data set and defense, the control first; the columns of a question have its name.

    Beside each score stand its mark and the name of the worst attack. Columns without any value are left out.
    """
    rows = [_line(board, row) for board in boards for row in board.rows]
    first = ["dataset", "defense", "accuracy"]
    names = dict.fromkeys([*first, *(key for row in rows for key in row if key not in LAST), *LAST])
    frame = pd.DataFrame(rows, columns=list(names))
    empty = [name for name in frame.columns[3:] if frame[name].isna().all()]
    return frame.drop(columns=empty)


def _line(board: Scoreboard, row: ScoreRow) -> dict[str, Any]:
    """The fields of a defense."""
    line: dict[str, Any] = {"dataset": board.dataset, "defense": row.defense, "accuracy": row.accuracy.value}
    line["epsilon claimed"] = row.claimed
    for name, cell in row.cells.items():
        line[name] = cell.answer.value
        line[f"{name} (mark)"] = cell.mark
        line[f"{name} (attack)"] = cell.attack or None
    return {**line, "cost of a round": row.cost, "not ranked": row.unranked or None}


def tidy_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record and metric; `reason` says why there is no value, or no metric at all."""
    return pd.DataFrame(list(_lines(records)), columns=list(FRAME_COLUMNS))


def _lines(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        cell, spec = record.cell, record.cell.training
        about = {
            "dataset": spec.dataset.label,
            "model": spec.model.label,
            "defense": spec.defense.label,
            "attack": cell.attack.label,
            "goal": cell.goal,
            "about": cell.about,
            "threat": cell.threat,
            "round": cell.moment,
            "batch_size": cell.batch_size,
            "seed": spec.seed,
            "status": record.status,
            "accuracy": record.training.accuracy if record.training is not None else None,
            "key": record.key,
        }
        for name, score in record.scores.items():
            yield {**about, "metric": name, "value": score.value, "unit": score.unit, "reason": score.reason}
        if not record.scores:
            yield {**about, "metric": None, "value": None, "unit": "", "reason": record.reason}
