"""Whether the control of a table breaks: without that the attacks show nothing, and nobody is ranked."""

from __future__ import annotations

from collections.abc import Sequence

from leakboard.leaderboard.ranking.goal_ranking import TOO_FEW
from leakboard.leaderboard.ranking.silence import failed_training
from leakboard.leaderboard.records.record import CellSpec, Record

NOT_YET = "its cells are not computed"


def no_score(control: str, records: Sequence[Record], waiting: Sequence[CellSpec]) -> str:
    """Why the control has no score at all."""
    if any(cell.training.defense.label == control for cell in waiting):
        return NOT_YET
    failed = failed_training(record for record in records if record.cell.training.defense.label == control)
    return f"it has no score: {failed}" if failed else "it has no score"


def invalid(control: str, why: str) -> str:
    """The note of a table whose control does not break."""
    if why.startswith(TOO_FEW):
        return f"Whether the control ({control}) breaks here cannot be told: {why}. Nobody is ranked."
    if why == NOT_YET:
        return f"The control ({control}) has no score yet: {why}. Nobody is ranked before that."
    return f"The control ({control}) does not break here: {why}. The attacks show nothing, and nobody is ranked."
