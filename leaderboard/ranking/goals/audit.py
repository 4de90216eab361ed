"""Audits in tables: listed by name, not ranked, because a low bound may show a weak attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from leakboard.leaderboard.ranking.audit_table import (
    AUDIT,
    DOUBTED,
    NOTES,
    PLAIN_AUDIT,
    REFUTED,
    audit_cells,
    audited_records,
    outcome_of,
)
from leakboard.leaderboard.ranking.evidence import Evidence
from leakboard.leaderboard.ranking.goal_ranking import BROKEN, HELD, NO_CLAIM, NOT_SHOWN, ListedRanking, Question
from leakboard.leaderboard.records.record import CellSpec, Record
from leakboard.leaderboard.tables.table import Cell, Column


class AuditRanking(ListedRanking):
    """Lists the epsilon that is claimed beside the one that is proved."""

    name: ClassVar[str] = "audit"
    primary: ClassVar[str] = "audited"
    scope: ClassVar[str] = "the half of the trials on which attack and threshold were not chosen"
    words: ClassVar[Mapping[str, str]] = {
        BROKEN: "more than the claimed ε is proved",
        HELD: "no more than the claimed ε is proved",
    }

    def columns(self) -> tuple[Column, ...]:
        """The epsilons, and what became of the claim."""
        return AUDIT

    def plain_columns(self) -> tuple[Column, ...]:
        """The bound."""
        return PLAIN_AUDIT

    def listed_cells(self, records: Sequence[Record], extra: Mapping[str, Column]) -> dict[str, Cell] | None:
        """The cells of a defense from its audits that worked; None where there is none."""
        cells, found = audit_cells(records), audited_records(records)
        if cells is None:
            return None
        scores = found[-1].scores
        others = {column.key: scores[name] for name, column in extra.items() if name in scores}
        return {**cells, **{key: Cell(score.value, note=score.reason) for key, score in others.items()}}

    def why_listed_control_holds(self, control: dict[str, Cell]) -> str:
        """Without a proof for the control the attacks show nothing."""
        return "" if control["audited"].value else "its audit proves no epsilon"

    def listed_verdict(self, cells: Mapping[str, Cell], *, valid: bool) -> tuple[str, str]:
        """Whether the claimed epsilon held; that it did is said with the power of the audit."""
        outcome = outcome_of(cells["verdict"])
        if not outcome:
            return NO_CLAIM, ""
        if outcome == REFUTED:
            return BROKEN, ""
        if not valid:
            return NOT_SHOWN, "the control is not told apart either"
        if outcome == DOUBTED:
            return NOT_SHOWN, f"{DOUBTED}, which is no proof"
        return HELD, str(cells["verdict"].value)

    def notes(self, found: Sequence[Evidence], records: Sequence[Record], waiting: Sequence[CellSpec]) -> list[str]:
        """What the columns mean."""
        return list(NOTES)

    def question(self, about: str) -> Question:
        """The epsilon of a round."""
        return Question("epsilon proved", "ε claimed → proved")

    def answer(self, cells: Mapping[str, Cell]) -> Cell:
        """The claimed epsilon and the bound that is proved."""
        bound, claimed = super().answer(cells), cells["claimed"].value
        said = f"{claimed:.3g} → " if isinstance(claimed, (int, float)) else "→ "
        return replace(bound, text=f"{said}{bound.value:.2f}") if isinstance(bound.value, (int, float)) else bound

    def told(self, record: Record) -> str:
        """The bound, and what is claimed."""
        score = record.scores.get("epsilon_lower")
        if score is None or score.value is None:
            return ""
        claimed = score.details.get("claimed")
        return f"proves ε ≥ {score.value:.2f}" + (f" where {claimed:.3g} is claimed" if claimed is not None else "")

    def colour(self, value: float) -> float:
        """tanh(ε/2), the advantage that ε allows."""
        return math.tanh(value / 2)
