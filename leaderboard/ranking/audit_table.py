"""The audit table: the epsilon that a defense claims, what it composes to, and what an attack proves it to exceed.

An audit has no values by target, so nothing is ranked. Of several seeds the lower median of the bounds is shown (each
holds at 95 %, so the median of three fails in less than 1 % of cases). Of several attacks the worst is chosen by the
trials that chose its threshold, and reported on the others: the largest of several bounds would not hold at 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median_low

from leakboard.defenses.noise.calibration import DELTA
from leakboard.leaderboard.ranking.worst_case import KNOWS, PLAIN_ATTACK
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.table import Cell, Column
from leakboard.metrics.audit_power import Power, audit_power

#: refuted by the bound; by the Gaussian-DP estimate alone; by neither (never said without the power: `_verdict`)
REFUTED, DOUBTED, STANDS = "refuted", "exceeded by the estimate", "not refuted"
NO_CLAIM = "it claims no epsilon here"
NO_TRIALS = "the record does not say how many trials there were, so its power is not known"
AUDIT = (
    Column("attack", "worst attack", help="the attack that did most harm, chosen on the other half of the trials"),
    Column("claimed", "ε claimed", digits=2, help="what the defense claims, of a round or of the whole training"),
    Column(
        "round", "ε of a round", digits=2, help="by the accountant, against this threat, if the noise were Gaussian"
    ),
    Column("composed", "ε composed", digits=2, help="the same over the whole training"),
    Column("audited", "ε audited", digits=2, help="the true ε of a round is at least this, at 95 % confidence"),
    Column("mu", "μ̂", digits=2, help="estimate of Gaussian DP from the same scores, with its 95 % interval; no bound"),
    Column("implied", "ε of μ̂", digits=2, help="the ε that μ̂ means at the claimed δ, if the noise were Gaussian"),
    Column(
        "provable",
        "provable of the claim",
        digits=2,
        help="ε audited if exactly the claimed ε is spent (median)",
    ),
    Column("ceiling", "provable at most", digits=2, help="the largest ε that so many trials could prove"),
    Column("trials", "trials", digits=0),
    Column("verdict", "the claim is", help="refuted where ε audited exceeds ε claimed; else with the power"),
)
PLAIN_AUDIT = (
    PLAIN_ATTACK,
    Column("plain_audited", "plain ε audited", digits=2, help="the same for the plain attack"),
)
NOTES = (
    "Audits are listed, not ranked: a bound that is low may show a weak attack, not a strong defense.",
    "Each bound holds at 95 % confidence. Of several seeds the lower median is shown; the attack is chosen on the half "
    "of the trials that chooses its threshold too, and the bound is that of the other half.",
    "μ̂ takes what is seen in the two worlds for two Gaussians; the bound assumes nothing. Where several attacks were "
    "tried, μ̂ is that of the half which did not choose. Where the bound does not exceed the claim, but the whole "
    "interval of μ̂ does, the claim is exceeded by the estimate.",
    "Power: how often an audit with as many trials would find a Gaussian mechanism out whose noise is 2 or 4 times too "
    "small, by the bound and by the estimate. Without it, 'not refuted' says nothing.",
)


def audit_cells(records: Sequence[Record]) -> dict[str, Cell] | None:
    """The cells of a defense from its audits that worked; None where there is none."""
    medians = audited_records(records)
    if not medians:
        return None
    plain = [record for record in medians if not record.cell.adaptive]
    return _cells(medians[-1], chosen=len(medians) > 1) | (
        {"plain_attack": _attack(plain[-1]), "plain_audited": Cell(_bound(plain[-1]))} if plain else {}
    )


def audited_records(records: Sequence[Record]) -> list[Record]:
    """The audits that worked, of each attack the seed with the lower median; the worst attack last."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        score = record.scores.get("epsilon_lower")
        if record.status == "ok" and score is not None and score.value is not None:
            groups.setdefault(record.cell.attack.label, []).append(record)
    ordered = sorted(groups.values(), key=lambda group: (*_choosing(group), not group[0].cell.adaptive))
    return [_median(group) for group in ordered]


def _bound(record: Record) -> float:
    return record.scores["epsilon_lower"].value or 0.0


def _choosing(records: Sequence[Record]) -> tuple[float, float]:
    """The lower medians of bound and mu on the choosing half; of the bounds themselves in records of older code."""
    bounds = [r.scores["epsilon_lower"].details.get("choosing", _bound(r)) for r in records]
    return median_low(bounds), median_low([_estimate(r).get("choosing", 0.0) for r in records])


def _median(records: Sequence[Record]) -> Record:
    """The record with the lower median of the bounds, and of mu among equal ones."""
    keys = [(_bound(record), _estimate(record).get("evaluated", 0.0)) for record in records]
    return records[keys.index(median_low(keys))]


def _estimate(record: Record) -> dict[str, float]:
    """The details of mu; none in records of older code."""
    return record.scores["mu"].details if "mu" in record.scores else {}


def _attack(record: Record) -> Cell:
    return Cell(record.cell.attack.label, link=record.key, note=KNOWS if record.cell.adaptive else "")


def _own_words(record: Record) -> str:
    """What the defense itself says of its claim, where it says that it does not hold."""
    claims = record.training.claims if record.training is not None else {}
    return str(claims.get("reason", "")) if claims.get("dp_holds") is False else ""


def _cells(record: Record, *, chosen: bool) -> dict[str, Cell]:
    details, audited = record.scores["epsilon_lower"].details, _bound(record)
    claimed, trials = details.get("claimed"), details.get("trials")
    estimate = _half(record) if chosen else _whole(record)
    return {
        "attack": _attack(record),
        "claimed": Cell(claimed, note="" if claimed is not None else NO_CLAIM),
        "round": Cell(details.get("round")),
        "composed": Cell(details.get("composed")),
        "audited": Cell(audited, link=record.key),
        "mu": _interval(estimate, "mu", "low", "high"),
        "implied": _interval(estimate, "epsilon", "epsilon_low", "epsilon_high"),
        "provable": Cell(None if (power := _power(record)) is None else power.provable),
        "ceiling": Cell(details.get("ceiling")),
        "trials": Cell(None if trials is None else int(trials)),
        "verdict": _verdict(record, estimate),
    }


def _whole(record: Record) -> dict[str, float]:
    """The estimate from all trials: what there is where no attack was chosen."""
    found, details = record.scores.get("mu"), _estimate(record)
    return {} if found is None or found.value is None else {**details, "mu": found.value}


def _half(record: Record) -> dict[str, float]:
    """The estimate from the half that did not choose the attack, by the names of the whole one."""
    found = {
        name.removeprefix("evaluated_"): v for name, v in _estimate(record).items() if name.startswith("evaluated")
    }
    return {**found, "mu": found["evaluated"]} if "evaluated" in found else {}


def _interval(estimate: Mapping[str, float], value: str, low: str, high: str) -> Cell:
    """An estimate with its ends; without an upper one where the worlds were perfectly separated."""
    if value not in estimate:
        return Cell(None)
    separated = "at least: the worlds were perfectly separated" if estimate.get("separated") else ""
    return Cell(estimate[value], estimate.get(low), estimate.get(high), note=separated)


def _verdict(record: Record, estimate: Mapping[str, float]) -> Cell:
    """What became of the claim. That it is not refuted is never said without the power to refute it."""
    claimed, power = record.scores["epsilon_lower"].details.get("claimed"), _power(record)
    if claimed is None:
        return Cell(None, note=NO_CLAIM)
    if _bound(record) > claimed:
        # some schemes claim it against another threat, or with a reservation: then the note has their own words
        return Cell(REFUTED, note=_own_words(record))
    if estimate.get("epsilon_low", 0.0) > claimed:
        return Cell(DOUBTED, note=_own_words(record))
    return Cell(None, note=NO_TRIALS) if power is None else Cell(f"{STANDS} ({power_in_words(power)})")


def outcome_of(verdict: Cell) -> str:
    """Which of `REFUTED`, `DOUBTED`, `STANDS` a verdict is; empty where nothing is claimed."""
    said = str(verdict.value or "")
    return STANDS if said.startswith(STANDS) else said


def power_in_words(power: Power) -> str:
    """How often noise that is too small would have been found out.

    >>> power_in_words(Power(0.35, 0.0, 0.27, 0.03, 1.0, 1.0))
    'power at noise / 2: bound 0 %, estimate 100 %; at noise / 4: bound 27 %, estimate 100 %'
    """
    pairs = ((2, power.bound_2x, power.estimate_2x), (4, power.bound_4x, power.estimate_4x))
    said = (f"at noise / {n}: bound {bound:.0%}, estimate {estimate:.0%}" for n, bound, estimate in pairs)
    return "power " + "; ".join(said).replace("%", " %")


def _power(record: Record) -> Power | None:
    """The power that the record tells; computed for records of older code. None where nothing is claimed."""
    details = record.scores["epsilon_lower"].details
    claimed, trials = details.get("claimed"), details.get("trials")
    found = record.scores.get("audit_power")
    names = [field.name for field in fields(Power) if field.name != "provable"]
    if found is not None and found.value is not None and found.details.keys() >= set(names):
        return Power(found.value, **{name: found.details[name] for name in names})
    delta = details.get("delta", DELTA)
    # a record is a stranger's file: numbers that no audit has are not worth hours of simulation
    if claimed is None or trials is None or not (8 <= trials <= 10**6 and 0 < claimed <= 1e6 and 0 < delta < 1):
        return None
    return audit_power(int(trials), claimed, delta)
