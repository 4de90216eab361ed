"""Extraction in tables: ranked by fidelity over the reporting half of the test records."""

from __future__ import annotations

from typing import ClassVar

from leakboard.leaderboard.ranking.evidence import Evidence
from leakboard.leaderboard.ranking.goal_ranking import GoalRanking, Question, metric_cell, short
from leakboard.leaderboard.ranking.worst_case import ATTACK, PLAIN_ATTACK, RankedRow, attack_cell, of_plain, share
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.table import Cell, Column

#: the control's model is open to everyone: an extraction that agrees with it on fewer test records does not work
FAITHFUL = 99.0
#: a stolen model that agrees with the true one on more of the test records than this (%) is more than nothing
MOST_RECORDS = 50.0
FIDELITY = Column(
    "fidelity", "fidelity", unit="%", digits=1, direction="lower", help="test records on which it agrees with the model"
)
ACCURACY = Column(
    "stolen_accuracy",
    "stolen accuracy",
    unit="%",
    digits=1,
    direction="lower",
    help="test accuracy of the stolen model",
)
DISTANCE = Column(
    "canonical_distance",
    "distance",
    digits=3,
    direction="higher",
    help="of the stolen weights from the true ones, rescalings that change no function taken out; over all seeds",
)


class ExtractionRanking(GoalRanking):
    """Ranks by fidelity, then by the accuracy of the stolen model."""

    name: ClassVar[str] = "extraction"
    primary: ClassVar[str] = "fidelity"

    def columns(self) -> tuple[Column, ...]:
        """Fidelity, accuracy and distance."""
        return ATTACK, FIDELITY, ACCURACY, DISTANCE

    def plain_columns(self) -> tuple[Column, ...]:
        """Fidelity."""
        return PLAIN_ATTACK, of_plain(FIDELITY)

    def harm(self, evidence: Evidence) -> tuple[float, ...]:
        """Fidelity, then the stolen accuracy."""
        return evidence.mean("fidelity") or 0.0, evidence.mean("stolen_accuracy") or 0.0

    def cells(self, reported: Evidence) -> dict[str, Cell]:
        """Shares over the reported test records; the distance has no values by record."""
        accuracy = reported.values.get("stolen_accuracy")
        return {
            "attack": attack_cell(reported),
            "fidelity": share(reported.values["fidelity"]),
            "stolen_accuracy": share(accuracy) if accuracy is not None else Cell(None),
            "canonical_distance": metric_cell(reported, "canonical_distance"),
        }

    def why_control_holds(self, control: RankedRow) -> str:
        """Why the extractions from the control show nothing; "" where the stolen model is the true one."""
        faithful = control.order[0] >= FAITHFUL / 100
        return "" if faithful else f"its fidelity is below {FAITHFUL:g} %, and it hides nothing"

    def leaks(self, row: RankedRow) -> bool:
        """Whether the stolen model agrees with the true one on most test records."""
        return float(row.cells["fidelity"].value or 0) > MOST_RECORDS

    def question(self, about: str) -> Question:
        """The model itself."""
        return Question("the model", "the model")

    def told(self, record: Record) -> str:
        """The fidelity of the stolen model."""
        score = record.scores.get("fidelity")
        return (
            ""
            if score is None or score.value is None
            else f"copies the model, fidelity {short(100 * score.value, '%')}"
        )

    def colour(self, value: float) -> float:
        """Shares as they are."""
        return value / 100
