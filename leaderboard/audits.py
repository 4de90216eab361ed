"""The audit table: the epsilon that a defense claims, what it composes to, and what an attack proves it to exceed.

An audit has no values by target, so nothing is ranked. Of several seeds the lower median of the bounds is shown (each
holds at 95 %, so the median of three fails in less than 1 % of cases). Of several attacks the worst is chosen by the
trials that chose its threshold, and reported on the others: the largest of several bounds would not hold at 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from leaderboard.record import Record
from leaderboard.rows import KNOWS, PLAIN_ATTACK
from leaderboard.table import Cell, Column

REFUTED, STANDS = "refuted", "not refuted"
NO_CLAIM = "it claims no epsilon here"
AUDIT = (
    Column("attack", "worst attack", help="the attack that did most harm, chosen on the other half of the trials"),
    Column("claimed", "ε claimed", digits=2, help="what the defense claims, of a round or of the whole training"),
    Column(
        "round", "ε of a round", digits=2, help="by the accountant, against this threat, if the noise were Gaussian"
    ),
    Column("composed", "ε composed", digits=2, help="the same over the whole training"),
    Column("audited", "ε audited", digits=2, help="the true ε of a round is at least this, at 95 % confidence"),
    Column("ceiling", "provable at most", digits=2, help="the largest ε that so many trials could prove"),
    Column("trials", "trials", digits=0),
    Column("verdict", "the claim is", help="refuted where the audited epsilon exceeds the claimed one"),
)
PLAIN_AUDIT = (
    PLAIN_ATTACK,
    Column("plain_audited", "plain ε audited", digits=2, help="the same for the plain attack"),
)
NOTES = (
    "Audits are listed, not ranked: a bound that is low may show a weak attack, not a strong defense.",
    "Each bound holds at 95 % confidence. Of several seeds the lower median is shown; the attack is chosen on the half "
    "of the trials that chooses its threshold too, and the bound is that of the other half.",
)


def audit_cells(records: Sequence[Record]) -> dict[str, Cell] | None:
    """The cells of a defense from its audits that worked; None where there is none."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        score = record.scores.get("epsilon_lower")
        if record.status == "ok" and score is not None and score.value is not None:
            groups.setdefault(record.cell.attack.label, []).append(record)
    if not groups:
        return None
    ordered = sorted(groups.values(), key=lambda group: (_choosing(group), not group[0].cell.adaptive))
    medians = [_median(group) for group in ordered]
    plain = [record for record in medians if not record.cell.adaptive]
    return _cells(medians[-1]) | (
        {"plain_attack": _attack(plain[-1]), "plain_audited": Cell(_bound(plain[-1]))} if plain else {}
    )


def _bound(record: Record) -> float:
    return record.scores["epsilon_lower"].value or 0.0


def _choosing(records: Sequence[Record]) -> float:
    """The lower median of the bounds on the choosing half; of the bounds themselves in records of older code."""
    return median_low([r.scores["epsilon_lower"].details.get("choosing", _bound(r)) for r in records])


def _median(records: Sequence[Record]) -> Record:
    """The record with the lower median of the bounds."""
    middle = median_low([_bound(record) for record in records])
    return next(record for record in records if _bound(record) == middle)


def _attack(record: Record) -> Cell:
    return Cell(record.cell.attack.label, link=record.key, note=KNOWS if record.cell.adaptive else "")


def _own_words(record: Record) -> str:
    """What the defense itself says of its claim, where it says that it does not hold."""
    claims = record.training.claims if record.training is not None else {}
    return str(claims.get("reason", "")) if claims.get("dp_holds") is False else ""


def _cells(record: Record) -> dict[str, Cell]:
    details, audited = record.scores["epsilon_lower"].details, _bound(record)
    claimed, trials = details.get("claimed"), details.get("trials")
    verdict = Cell(None, note=NO_CLAIM)
    if claimed is not None:
        # some schemes claim it against others than this threat, or not in earnest: then their own words stand beside
        refuted = audited > claimed
        verdict = Cell(REFUTED, note=_own_words(record)) if refuted else Cell(STANDS)
    return {
        "attack": _attack(record),
        "claimed": Cell(claimed, note="" if claimed is not None else NO_CLAIM),
        "round": Cell(details.get("round")),
        "composed": Cell(details.get("composed")),
        "audited": Cell(audited, link=record.key),
        "ceiling": Cell(details.get("ceiling")),
        "trials": Cell(None if trials is None else int(trials)),
        "verdict": verdict,
    }
