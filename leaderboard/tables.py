"""From records to tables: one ranking a data set, goal and threat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attacks.base import NOTHING_TO_IMITATE
from core.seeds import natural_order
from leaderboard.audits import AUDIT, NOTES, PLAIN_AUDIT, audit_cells
from leaderboard.gap import gap_of
from leaderboard.ranking import (
    Evidence,
    aligned,
    compare,
    extraction_harm,
    gather,
    membership_harm,
    percentile_interval,
    ranks,
    reconstruction_harm,
)
from leaderboard.record import Record
from leaderboard.rows import (
    EXTRACTION,
    MEMBERSHIP,
    PLAIN_COLUMNS,
    RECONSTRUCTION,
    RECONSTRUCTION_REST,
    Harm,
    RankedRow,
    above,
    extraction_row,
    is_prior,
    membership_row,
    reconstruction_row,
)
from leaderboard.soundness import GOALS
from leaderboard.table import Cell, Column, Row, Table
from leaderboard.utility import Utility, utility_of

#: the order of tables: goals (as in `GOALS`), what membership is about, threats (`server+clients:m` by m)
ABOUT = ("training", "batch")
THREATS = ("server", "server+keys", "server+clients", "server:active", "client")
#: the control's model is open to everyone: an extraction that agrees with it on fewer test records does not work
FAITHFUL = 99.0
RANK = Column("rank", "rank", digits=0, direction="lower", help="1 leaks least; equal ranks are ties")
COMMON = (
    Column("defense", "defense"),
    Column("accuracy", "accuracy", unit="%", digits=1, direction="higher", help="test accuracy of the global model"),
)


@dataclass(frozen=True)
class Place:
    """What a table is about."""

    dataset: str
    goal: str
    about: str
    threat: str
    share: float = 1

    @property
    def order(self) -> tuple[str, int, int, int, int, str, float]:
        """Tables stand in this order."""
        family = "server+clients" if self.threat.startswith("server+clients:") else self.threat
        known = THREATS.index(family) if family in THREATS else len(THREATS)
        place = GOALS.index(self.goal), ABOUT.index(self.about), known
        return self.dataset, *place, len(self.threat), self.threat, -self.share  # by length: 2 colluders come before 10

    @property
    def title(self) -> str:
        """The table's title, without the round."""
        goal = {"batch": "Membership in the batch"}.get(self.about, self.goal.capitalize())
        return f"{goal}{self.pool}, {self.dataset}, threat {self.threat}"

    @property
    def pool(self) -> str:
        """How much of the batch was among the candidates, where that was not all of it."""
        return "" if self.share == 1 else f" ({pool_words(self.share)})"

    @property
    def question(self) -> str:
        """What was asked, in two words or a few more."""
        return f"batch membership{self.pool}" if self.about == "batch" else self.goal


def place_of(record: Record) -> Place:
    """The table that a record belongs to."""
    cell = record.cell
    return Place(cell.training.dataset.label, cell.goal, cell.about, cell.threat, cell.pool_share)


def pool_words(share: float) -> str:
    """A `pool_share` in words."""
    return f"{100 * share:g} % of the batch among the candidates"


@dataclass(frozen=True)
class Board:
    """A table with what figures need beside it: place, whether it ranks, accuracies, the evidence of its rows."""

    place: Place
    table: Table
    valid: bool
    utility: Utility
    rows: tuple[RankedRow, ...] = ()


@dataclass(frozen=True)
class _Kind:
    """How a goal is ranked: by which harm, in which columns, and what makes its control valid ("" or why not)."""

    harm: Harm
    row: Callable[[str, list[Evidence]], RankedRow | None]
    columns: tuple[Column, ...]
    broken: Callable[[RankedRow], str]
    items: str
    rest: tuple[Column, ...] = ()


def _not_above_prior(control: RankedRow) -> str:
    return "" if above(control.cells["excess"], 0) else "its PSNR is not above the prior"


def _coin(control: RankedRow) -> str:
    return "" if above(control.cells["auc"], 0.5) else "its AUC interval is not above 0.5"


def _unfaithful(control: RankedRow) -> str:
    return "" if control.order[0] >= FAITHFUL / 100 else f"its fidelity is below {FAITHFUL:g} %, and it hides nothing"


KINDS = {
    "reconstruction": _Kind(
        reconstruction_harm, reconstruction_row, RECONSTRUCTION, _not_above_prior, "targets", RECONSTRUCTION_REST
    ),
    "membership": _Kind(membership_harm, membership_row, MEMBERSHIP, _coin, "targets"),
    "extraction": _Kind(extraction_harm, extraction_row, EXTRACTION, _unfaithful, "test records"),
}


def ranking_tables(records: Sequence[Record], control: str, gate: float) -> list[Table]:
    """One table a data set, goal and threat, in a fixed order."""
    return [board.table for board in ranking_boards(records, control, gate)]


def ranking_boards(records: Sequence[Record], control: str, gate: float) -> list[Board]:
    """The tables with the evidence behind them, in a fixed order."""
    groups: dict[Place, list[Record]] = {}
    for record in records:
        groups.setdefault(place_of(record), []).append(record)
    boards = []
    for place, group in sorted(groups.items(), key=lambda item: item[0].order):
        # of all goals and threats: a training is the same for all of them, but for those of an active server
        trained = [record for record in records if record.cell.training.dataset.label == place.dataset]
        utility = utility_of(trained, control, gate)
        group = _with_control(place, group, records, control)
        boards.append(_audit(place, group, utility) if place.goal == "audit" else _ranked(place, group, utility))
    return boards


def _with_control(place: Place, group: list[Record], records: Sequence[Record], control: str) -> list[Record]:
    """The records of a table; where the server is active, the control's are those of its honest server.

    Nothing is hidden from that server, so there is nothing that it could gain by deviating.
    """
    if place.threat != "server:active":
        return group
    of_control = [r for r in group if r.cell.training.defense.label == control]
    if any(record.status == "ok" for record in of_control):
        return group
    honest = replace(place, threat="server")
    borrowed = [r for r in records if place_of(r) == honest and r.cell.training.defense.label == control]
    return [r for r in group if r not in of_control] + borrowed


def _by_defense(records: Sequence[Record]) -> dict[str, list[Record]]:
    names = natural_order({record.cell.training.defense.label for record in records})
    return {name: [r for r in records if r.cell.training.defense.label == name] for name in names}


def _ranked(place: Place, records: list[Record], utility: Utility) -> Board:
    """A table of a goal whose outcome is known target by target."""
    kind = KINDS[place.goal]
    groups = {name: gather(group) for name, group in _by_defense(records).items()}
    everything = [evidence for found in groups.values() for evidence in found]
    moment = _ranking_moment(groups.get(utility.control) or everything, kind.harm)
    here = {name: aligned([e for e in found if e.moment == moment]) for name, found in groups.items()}
    rows = [row for row in (kind.row(name, found) for name, found in here.items()) if row is not None]
    reasons = _why_nobody(place, kind, rows, records, utility)
    notes = list(reasons)
    if place.goal == "reconstruction" and everything and not any(is_prior(evidence) for evidence in everything):
        notes.append("There is no prior among the attacks, so there is nothing to compare with: add it to the suite.")
    notes += _remarks(records)
    if rows:
        count = len(rows[0].strata)
        notes.append(f"Scores are over {count} {kind.items}, the half on which the attack was not chosen.")
    order = _order(rows, records, utility, valid=not reasons)
    beside = PLAIN_COLUMNS[place.goal] if _any_adaptive(records) else ()
    columns = (RANK, *COMMON, *kind.columns, *beside, *kind.rest)
    body = [(name, {"rank": order[name], **_by_name(rows)[name].cells}) for name in order]
    table = _table(place.title + (f", {moment} round" if moment else ""), columns, body, notes, records, utility)
    return Board(place, table, not reasons, utility, tuple(rows))


def _audit(place: Place, records: list[Record], utility: Utility) -> Board:
    """The table of audits: listed by name, not ranked."""
    found = {name: audit_cells(group) for name, group in _by_defense(records).items()}
    body = [(name, cells) for name, cells in found.items() if cells is not None]
    control = found.get(utility.control)
    valid = control is not None and bool(control["audited"].value)
    why = "it has no score" if control is None else "its audit proves no epsilon"
    columns = (*COMMON, *AUDIT, *(PLAIN_AUDIT if _any_adaptive(records) else ()))
    notes = [*([] if valid else [_invalid(utility.control, why)]), *_remarks(records), *NOTES]
    return Board(place, _table(place.title, columns, body, notes, records, utility), valid, utility)


def _ranking_moment(control: list[Evidence], harm: Harm) -> str | None:
    """The observed round in which the control breaks most (anybody, where the control has no score at all)."""
    attacks = [evidence for evidence in control if not is_prior(evidence)] or control
    return max(attacks, key=harm).moment if attacks else None


def _why_nobody(
    place: Place, kind: _Kind, rows: Sequence[RankedRow], records: Sequence[Record], utility: Utility
) -> list[str]:
    """Why a table ranks nobody: its control does not break, or there is no generalisation gap; empty where it ranks."""
    control = _by_name(rows).get(utility.control)
    why = "it has no score" if control is None else kind.broken(control)
    reasons = [_invalid(utility.control, why)] if why else []
    # what was in a batch shows in its gradient, whether the model generalises or not
    gap = gap_of(records, utility.control) if (place.goal, place.about) == ("membership", "training") else None
    return reasons + ([gap.note] if gap is not None and not gap.is_there else [])


def _by_name(rows: Sequence[RankedRow]) -> dict[str, RankedRow]:
    return {row.defense: row for row in rows}


def _order(rows: Sequence[RankedRow], records: Sequence[Record], utility: Utility, *, valid: bool) -> dict[str, Cell]:
    """The cell of the rank of every defense, in the order of the table; those that may not be ranked come last."""
    by_name = _by_name(rows)
    able = [row for row in rows if not _why_not(row.defense, utility, records)]
    names = [row.defense for row in sorted(able, key=lambda row: row.order)]
    found = ranks(names, lambda a, b: _compare(by_name[a], by_name[b])) if valid else dict.fromkeys(names)
    return {name: Cell(found.get(name)) for name in [*found, *(name for name in by_name if name not in found)]}


def _table(
    title: str,
    columns: Sequence[Column],
    body: Sequence[tuple[str, dict[str, Cell]]],
    notes: Sequence[str],
    records: Sequence[Record],
    utility: Utility,
) -> Table:
    """The table with what every one has: accuracy, the utility gate and its remark, the best marked."""
    rows = []
    for name, cells in body:
        why = _why_not(name, utility, records)
        first = columns[0].key
        mine = {**cells, "defense": Cell(name), "accuracy": utility.cell(name)}
        mine[first] = replace(mine[first], note=why)
        rows.append(Row({c.key: mine[c.key] for c in columns if c.key in mine}, muted=bool(why)))
    gate = [utility.note] if RANK in columns else []
    table = Table(title, tuple(columns), tuple(rows), (*notes, *gate))
    return table.mark_best() if sum(not row.muted for row in rows) > 1 else table


def _remarks(records: Sequence[Record]) -> list[str]:
    """What the reader must know of the attacks: which gave no score, and whether any knew the defense."""
    broken = [record for record in records if record.status != "ok"]
    notes = [f"{len(broken)} of {len(records)} cells did not give a score; see the list of cells."] if broken else []
    if not _any_adaptive(records):
        notes.append(
            "Only plain attacks ran here: none of them knows the defense. A good rank shows no more than that."
        )
    return notes


def _any_adaptive(records: Sequence[Record]) -> bool:
    """Whether any attack gave an answer and really used what it knows of the defense."""

    def used(record: Record) -> bool:
        plain = any(flag.startswith(NOTHING_TO_IMITATE) for flag in record.flags)
        return record.cell.adaptive and record.status == "ok" and not plain

    return any(used(record) for record in records)


def _why_not(name: str, utility: Utility, records: Sequence[Record]) -> str:
    """Why a defense is not ranked: it does not train, or an attack on it gave no answer (which must not be a win)."""
    if not utility.passes(name):
        return utility.verdict(name)
    return unanswered(record for record in records if record.cell.training.defense.label == name)


def unanswered(records: Iterable[Record]) -> str:
    """Which attacks gave no answer, in words; nothing where all did."""
    broken = sorted({r.cell.attack.label for r in records if r.status in ("failed", "timeout", "crashed")})
    return f"incomplete: {', '.join(broken)} gave no answer" if broken else ""


def _compare(first: RankedRow, second: RankedRow) -> int:
    """-1 or 1 where the first leaks less or more, 0 for a tie.

    All rows tie that are no better than the prior and of which no more images are identified than by chance.
    """
    if "auc" in first.harms:  # bootstrap draws with the same resamples: their differences are paired
        interval = percentile_interval(first.harms["auc"] - second.harms["auc"])
        return 0 if interval.low <= 0 <= interval.high else -1 if interval.high < 0 else 1
    if "excess" in first.harms and not (first.beats_prior or second.beats_prior):
        return 0
    common = np.intersect1d(first.strata, second.strata)
    if not len(common):
        return 0  # no seed worked for both: nothing tells them apart
    left, right = np.isin(first.strata, common), np.isin(second.strata, common)
    return compare(
        {name: values[left] for name, values in first.harms.items()},
        {name: values[right] for name, values in second.harms.items()},
        first.strata[left],
    )


def _invalid(control: str, why: str) -> str:
    return f"The control ({control}) does not break here: {why}. The attacks show nothing, and nobody is ranked."
