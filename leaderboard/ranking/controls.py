"""Whether the control of a table breaks: without that the attacks show nothing, and nobody is ranked."""

from __future__ import annotations

from collections.abc import Sequence

from leakboard.leaderboard.ranking.evidence import FEW
from leakboard.leaderboard.ranking.silence import failed_training
from leakboard.leaderboard.ranking.worst_case import RankedRow, above, identifies
from leakboard.leaderboard.records.record import CellSpec, Record

#: the control's model is open to everyone: an extraction that agrees with it on fewer test records does not work
FAITHFUL = 99.0
#: what the reason begins with where the control looks broken, but so few targets do not prove it
TOO_FEW = "too few targets"
NOT_YET = "its cells are not computed"


def not_above_prior(control: RankedRow) -> str:
    """Why reconstructions of the control show nothing; "" where PSNR is above the prior or images are identified.

    One of both is enough: each interval leaves out what a guess gives, at 2.5 % false alarms.
    """
    if above(control.cells["excess"], 0) or identifies(control.reported):
        return ""
    hits, excess = control.reported.values["identified"], float(control.cells["excess"].value or 0)
    if len(hits) < FEW and (excess > 0 or hits.any()):  # the unit is the batch, the words count images
        size = control.reported.batch_size
        found = f"{round(float(hits.sum()) * size)} of {len(hits) * size} identified"
        return f"{TOO_FEW}: {found}, {excess:.2f} dB over the prior"
    return "its PSNR is not above the prior, nor are more images identified than by chance"


def coin(control: RankedRow) -> str:
    """Why the membership attacks on the control show nothing; "" where the interval of the AUC is above 0.5."""
    if above(control.cells["auc"], 0.5):
        return ""
    area, count = float(control.cells["auc"].value or 0), len(control.strata)
    return (
        f"{TOO_FEW}: AUC {area:.3f} over {count}" if count < FEW and area > 0.5 else "its AUC interval is not above 0.5"
    )


def unfaithful(control: RankedRow) -> str:
    """Why the extractions from the control show nothing; "" where the stolen model is the true one."""
    return "" if control.order[0] >= FAITHFUL / 100 else f"its fidelity is below {FAITHFUL:g} %, and it hides nothing"


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
