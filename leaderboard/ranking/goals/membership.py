"""Membership in tables: ranked by the AUC, with paired resamples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from leakboard.leaderboard.ranking.evidence import FEW, Evidence, auc_draws, mean_auc, percentile_interval, tpr_at
from leakboard.leaderboard.ranking.generalisation_gap import gap_of
from leakboard.leaderboard.ranking.goal_ranking import TOO_FEW, GoalRanking, Question
from leakboard.leaderboard.ranking.worst_case import (
    ATTACK,
    PLAIN_ATTACK,
    RankedRow,
    above,
    attack_cell,
    bounded,
    of_plain,
    with_plain,
    worst_and_plain,
)
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.table import Cell, Column

Floats = NDArray[np.float64]
ONE_CLASS = "the reported half has one class only"
#: the false positive rate of the table's true positive rate
LOW_FPR = 0.01
AUC = Column("auc", "AUC", digits=3, direction="lower", help="0.5 is a coin")
TPR = Column(
    "tpr", "TPR at 1 % FPR", unit="%", digits=1, direction="lower", help="members found with 1 % of others accused"
)
ASR = Column(
    "asr", "ASR", unit="%", digits=1, direction="lower", help="balanced accuracy; the threshold never saw the truth"
)


class MembershipRanking(GoalRanking):
    """Ranks by the AUC, the mean over seeds."""

    name: ClassVar[str] = "membership"
    primary: ClassVar[str] = "auc"
    guess: ClassVar[float | None] = 0.5

    def columns(self) -> tuple[Column, ...]:
        """AUC, TPR and ASR."""
        return ATTACK, AUC, TPR, ASR

    def plain_columns(self) -> tuple[Column, ...]:
        """AUC and TPR."""
        return PLAIN_ATTACK, of_plain(AUC), of_plain(TPR)

    def harm(self, evidence: Evidence) -> tuple[float, ...]:
        """The AUC, the mean over seeds."""
        return (mean_auc(evidence),)

    def row(self, defense: str, found: list[Evidence]) -> RankedRow | None:
        """A defense's worst case among all membership attacks."""
        picked = worst_and_plain(found, self.harm)
        if picked is None:
            return None
        reported, plain, chosen = picked
        draws = auc_draws(reported)
        cells = _cells(reported, draws)
        beside = {} if plain is None else cells if plain.attack == reported.attack else _cells(plain, auc_draws(plain))
        cells = with_plain(cells, beside, self.plain_columns())
        return RankedRow(defense, cells, self.harm(reported), {"auc": draws}, reported, plain, self.harm(chosen))

    def compare(self, first: RankedRow, second: RankedRow) -> int:
        """By bootstrap draws with the same resamples, so that their differences are paired; over common seeds."""
        common = np.intersect1d(first.strata, second.strata)
        if not len(common):
            return 0  # no seed worked for both: nothing tells them apart
        left, right = (_draws(row, common) for row in (first, second))
        interval = percentile_interval(left - right)
        return 0 if interval.low <= 0 <= interval.high else -1 if interval.high < 0 else 1

    def why_control_holds(self, control: RankedRow) -> str:
        """Why the membership attacks on the control show nothing; "" where the interval of the AUC is above 0.5."""
        if above(control.cells["auc"], 0.5):
            return ""
        area, count = float(control.cells["auc"].value or 0), len(control.strata)
        few = f"{TOO_FEW}: AUC {area:.3f} over {count}"
        return few if count < FEW and area > 0.5 else "its AUC interval is not above 0.5"

    def why_nobody(self, records: Sequence[Record], control: str, about: str) -> list[str]:
        """Without a generalisation gap, membership in the training shows nothing.

        What was in a batch shows in its gradient, whether the model generalises or not.
        """
        gap = gap_of(records, control) if about == "training" else None
        return [gap.note] if gap is not None and not gap.is_there else []

    def question(self, about: str) -> Question:
        """Membership in one batch, or in the training."""
        if about == "batch":
            return Question("who is in the batch", "who is in the batch (AUC)")
        return Question("membership AUC", "membership (AUC)")

    def told(self, record: Record) -> str:
        """The AUC."""
        score = record.scores.get("auc")
        if score is None or score.value is None:
            return ""
        what = "who is in the batch" if record.cell.about == "batch" else "who was trained on"
        return f"tells {what} with AUC {score.value:.2f}"

    def colour(self, value: float) -> float:
        """The advantage 2·AUC − 1."""
        return 2 * value - 1


def _draws(row: RankedRow, seeds: NDArray[np.int64]) -> Floats:
    """The draws of a row over these seeds alone."""
    kept = np.flatnonzero(np.isin(row.strata, seeds))
    return row.harms["auc"] if len(kept) == len(row.strata) else auc_draws(row.reported.take(kept))


def _cells(reported: Evidence, draws: Floats) -> dict[str, Cell]:
    member = reported.values["member"] > 0
    decided = reported.values["decision"] > 0
    both = member.any() and not member.all()
    asr = 100 * float((decided[member].mean() + (~decided[~member]).mean()) / 2) if both else None
    return {
        "attack": attack_cell(reported),
        "auc": bounded(mean_auc(reported), percentile_interval(draws)),
        "tpr": _tpr_cell(reported),
        "asr": Cell(asr, note="" if both else ONE_CLASS),
    }


def _tpr_cell(reported: Evidence) -> Cell:
    """The mean over seeds of the true positive rate; nothing, with the reason, where a seed has too few non-members."""
    score, truth, seeds = reported.values["score"], reported.values["member"], reported.strata
    rates = [tpr_at(score[seeds == seed], truth[seeds == seed], LOW_FPR) for seed in np.unique(seeds)]
    known = [rate for rate in rates if rate is not None]
    if len(known) == len(rates):
        return Cell(100 * float(np.mean(known)))
    fewest = min(int((truth[seeds == seed] == 0).sum()) for seed in np.unique(seeds))
    needed = round(1 / LOW_FPR)
    if fewest >= needed:
        return Cell(None, note=ONE_CLASS)
    return Cell(None, note=f"the reported half has {fewest} non-members a seed, fewer than {needed}: no such rate")
