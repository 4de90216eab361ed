"""The results of a run as data frames: the scoreboard, and all scores in one tidy table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.ranking.epsilons import claims_of, number
from leakboard.leaderboard.ranking.leaderboards import Board, Place
from leakboard.leaderboard.records.record import Record

#: goal and what it is about -> the question in words, and the column of the table that answers it
QUESTIONS = {
    ("reconstruction", "training"): ("images recovered", "identified"),
    ("membership", "batch"): ("who is in the batch", "auc"),
    ("membership", "training"): ("membership AUC", "auc"),
    ("extraction", "training"): ("the model", "fidelity"),
    ("audit", "training"): ("epsilon proved", "audited"),
}
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


def scoreboard_frame(boards: Sequence[Board], records: Sequence[Record]) -> pd.DataFrame:
    """One row per data set and defense, the control first; columns as `question` names them.

    Beside each score stands the name of the worst attack. Columns without any value are left out.
    """
    rows: list[dict[str, Any]] = []
    for dataset in dict.fromkeys(board.place.dataset for board in boards):
        here = [board for board in boards if board.place.dataset == dataset]
        here.sort(key=lambda board: board.place.threat == "client")  # what the server can do comes first
        mine = [record for record in records if record.cell.training.dataset.label == dataset]
        names = natural_order({record.cell.training.defense.label for record in mine})
        for name in sorted(names, key=lambda label: label != here[0].utility.control):
            own = [record for record in mine if record.cell.training.defense.label == name]
            row = {"dataset": dataset, "defense": name, "accuracy": here[0].utility.cell(name).value}
            row["epsilon claimed"] = number(claims_of(own), "epsilon_claimed")
            for board in here:
                row |= _answers(board, name)
            rows.append(row)
    columns = ["dataset", "defense", "accuracy", *dict.fromkeys(key for row in rows for key in row)]
    frame = pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))
    empty = [name for name in frame.columns[3:] if frame[name].isna().all()]
    return frame.drop(columns=empty)


def question(place: Place) -> str:
    """The name of a scoreboard's column: who attacks, and what is asked; batches and pools where they are not plain.

    >>> question(Place("digits", "reconstruction", "training", "server", batch_size=8))
    'server: images recovered (batch of 8)'
    >>> question(Place("digits", "membership", "training", "client"))
    'client: membership AUC'
    """
    words, _ = QUESTIONS.get((place.goal, place.about), (place.question, ""))
    more = [f"batch of {place.batch_size}"] if place.batch_size > 1 else []
    more += [f"{100 * place.share:g} % pool"] if place.share != 1 else []
    return f"{place.threat}: {words}" + (f" ({', '.join(more)})" if more else "")


def _answers(board: Board, defense: str) -> dict[str, Any]:
    """The score of a defense on a board, and the attack that got it."""
    title = question(board.place)
    row = next((row for row in board.table.rows if row.cells["defense"].value == defense), None)
    key = _score_key(board)
    score = row.cells[key].value if row is not None and key in row.cells else None
    attack = row.cells["attack"].value if row is not None and "attack" in row.cells else None
    return {title: score, f"{title} (attack)": attack if score is not None else None}


def _score_key(board: Board) -> str:
    """The column that answers a board's question: of a goal from outside, the first one with a direction."""
    place = board.place
    if (place.goal, place.about) in QUESTIONS:
        return QUESTIONS[place.goal, place.about][1]
    plain = ("rank", "accuracy")
    return next((c.key for c in board.table.columns if c.direction is not None and c.key not in plain), "")


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
