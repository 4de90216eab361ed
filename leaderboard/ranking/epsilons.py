"""The privacy budget of a defense in three columns: nominal, exact per round, exact per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.table import Cell, Column

EPSILONS = (
    Column(
        "epsilon_nominal", "ε nominal", digits=2, help="what the defense is set to, per round or per run as it says"
    ),
    Column("epsilon_round", "ε exact per round", digits=2, help="by the accountant, if all noise were Gaussian"),
    Column("epsilon_run", "ε exact per run", digits=2, help="the same over all rounds of the training"),
)
EXACT_NOTE = (
    "ε exact: against the parties of this table's threat, if all noise were Gaussian, on this graph, at this delta. "
    "A scheme whose noise counts on colluding clients spends less against a server without helpers."
)


def claims_of(records: Sequence[Record]) -> Mapping[str, object]:
    """What a defense claims in numbers, from its first honest training if there is one; nothing where none finished."""
    trained = sorted((r for r in records if r.training is not None), key=lambda record: record.cell.training.active)
    return next((record.training.claims for record in trained if record.training is not None), {})


def number(claims: Mapping[str, object], *keys: str) -> float | None:
    """The first of these claims that is a number."""
    found = (claims.get(key) for key in keys)
    return next((float(v) for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)), None)


def per(claims: Mapping[str, object]) -> str:
    """What the nominal epsilon is of: a round, or the run (older records say so by `mode: corrected` alone)."""
    stated = claims.get("epsilon_per")
    if stated in ("round", "run"):
        return str(stated)
    return "run" if claims.get("mode") == "corrected" else "round"


def exact_round(claims: Mapping[str, object], threat: str = "") -> float | None:
    """The exact epsilon of a round, if all noise were Gaussian; older records have none.

    Against the threat where the defense tells that apart, else against the parties that it counts on itself.
    """
    return _against(claims, "epsilon_round_by_threat", threat, number(claims, "epsilon_round_exact"))


def exact_run(claims: Mapping[str, object], threat: str = "") -> float | None:
    """The exact epsilon of the whole run; older records have what the claimed noise composes to.

    A record that states None has none: the older field is not asked then.
    """
    whole = number(claims, "epsilon_run_exact" if "epsilon_run_exact" in claims else "epsilon_total_if_gaussian")
    return _against(claims, "epsilon_total_by_threat", threat, whole)


def _against(claims: Mapping[str, object], name: str, threat: str, otherwise: float | None) -> float | None:
    """What a threat gets where a defense says so; nothing where its budget is not meant against that threat."""
    meant = claims.get("epsilon_against")
    if threat and isinstance(meant, list) and threat not in meant:
        return None
    known = claims.get(name)
    told = number(known, threat) if isinstance(known, Mapping) else None
    return otherwise if told is None else told


def epsilon_cells(records: Sequence[Record]) -> dict[str, Cell]:
    """The three cells of a defense, exact against the threat of these records."""
    threat = records[0].cell.threat if records else ""
    claims = claims_of(records)
    nominal = number(claims, "epsilon_claimed")
    note = f"per {per(claims)}" if nominal is not None else ""
    return {
        "epsilon_nominal": Cell(nominal, note=note),
        "epsilon_round": Cell(exact_round(claims, threat)),
        "epsilon_run": Cell(exact_run(claims, threat)),
    }


def epsilon_columns(cells: Mapping[str, Mapping[str, Cell]]) -> tuple[Column, ...]:
    """The columns that have a value for anybody."""
    return tuple(c for c in EPSILONS if any(c.key in mine and mine[c.key].is_number for mine in cells.values()))
