"""From records to tables: one ranking per data set, goal, threat and, for reconstructions, batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leakboard.attacks.base import NOTHING_TO_IMITATE
from leakboard.core.glossary import explained
from leakboard.core.seeds import natural_order
from leakboard.leaderboard.ranking.controls import invalid, no_score
from leakboard.leaderboard.ranking.epsilons import EXACT_NOTE, epsilon_cells, epsilon_columns
from leakboard.leaderboard.ranking.evidence import Evidence, aligned, gather, ranks
from leakboard.leaderboard.ranking.goal_ranking import GoalRanking, ListedRanking, ranking_of
from leakboard.leaderboard.ranking.silence import diverged, not_there_yet, silent, unanswered
from leakboard.leaderboard.ranking.utility_gate import Utility, utility_of
from leakboard.leaderboard.ranking.worst_case import RankedRow, is_prior
from leakboard.leaderboard.records.known import goals, known_goal
from leakboard.leaderboard.records.record import CellSpec, Record
from leakboard.leaderboard.records.scope import reported_half
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

#: the order of tables: goals (by their `position`), what membership is about, threats (`server+clients:m` by m)
ABOUT = ("training", "batch")
THREATS = ("server", "server+keys", "server+clients", "server:active", "client")
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
    #: of reconstructions: how many records are behind each gradient; 1 for other goals
    batch_size: int = 1
    #: of batch membership: how much of the batch is among the candidates; 1 for other goals
    share: float = 1

    @property
    def order(self) -> tuple[str, int, int, int, int, str, int, float]:
        """Tables stand in this order."""
        family = "server+clients" if self.threat.startswith("server+clients:") else self.threat
        known = THREATS.index(family) if family in THREATS else len(THREATS)
        place = list(goals()).index(self.goal), ABOUT.index(self.about), known
        # by length: 2 colluders come before 10
        return self.dataset, *place, len(self.threat), self.threat, self.batch_size, -self.share

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
        share = "" if self.share == 1 else f", {100 * self.share:g} % pool"
        return f"batch membership{share}" if self.about == "batch" else self.goal

    @property
    def size(self) -> str:
        """The batch size in words, for titles; nothing where the goal has none."""
        return f"batch size {self.batch_size}" if known_goal(self.goal).per_batch_size else ""


def place_of(record: Record | CellSpec) -> Place:
    """The table that a record or a cell belongs to."""
    cell = record.cell if isinstance(record, Record) else record
    batch, share = cell.batch_size, cell.pool_share
    return Place(cell.training.dataset.label, cell.goal, cell.about, cell.threat, batch, share)


def pool_words(share: float) -> str:
    """A `pool_share` in words."""
    return f"{100 * share:g} % of the batch among the candidates"


@dataclass(frozen=True)
class Board:
    """A table with what figures need beside it: place, whether it ranks, accuracies, the evidence of its rows.

    `over` says over which targets its scores are, `waiting` are its cells that are not computed yet.
    """

    place: Place
    table: Table
    valid: bool
    utility: Utility
    rows: tuple[RankedRow, ...] = ()
    over: str = ""
    waiting: tuple[CellSpec, ...] = ()
    #: the same table for the other observed rounds, of which the scoreboard takes the worst for each defense
    rounds: tuple[Board, ...] = ()


def ranking_tables(records: Sequence[Record], control: str, gate: float) -> list[Table]:
    """One table per data set, goal, threat and batch size, in a fixed order, the smallest batch first."""
    return [board.table for board in ranking_boards(records, control, gate)]


def ranking_boards(
    records: Sequence[Record], control: str, gate: float, waiting: Sequence[CellSpec] = ()
) -> list[Board]:
    """The tables with the evidence behind them, in a fixed order; `waiting` are cells without a record yet."""
    groups: dict[Place, list[Record]] = {}
    for record in records:
        groups.setdefault(place_of(record), []).append(record)
    boards = []
    for place, group in sorted(groups.items(), key=lambda item: item[0].order):
        # of all goals and threats: a training is the same for all of them, but for those of an active server
        trained = [record for record in records if record.cell.training.dataset.label == place.dataset]
        utility = utility_of(trained, control, gate)
        group = _with_control(place, group, records, control)
        to_come = tuple(cell for cell in waiting if place_of(cell) == place)
        ranking = ranking_of(place.goal)
        if isinstance(ranking, ListedRanking):
            boards.append(_listed(place, ranking, group, utility, to_come))
        else:
            boards.append(_in_rounds(place, ranking, group, utility, to_come))
    return boards


def untabled(records: Sequence[Record], waiting: Sequence[CellSpec]) -> list[str]:
    """The titles of the tables of which no cell is computed yet."""
    known = {place_of(record) for record in records}
    return [place.title for place in sorted({place_of(c) for c in waiting} - known, key=lambda place: place.order)]


def smallest_batches(boards: Sequence[Board]) -> list[Board]:
    """The boards of every goal; of reconstructions those of a data set's smallest batch size alone.

    Cards and figures show these: one number per defense and threat.
    """

    def smallest(place: Place) -> int:
        return min(b.place.batch_size for b in boards if (b.place.dataset, b.place.goal) == (place.dataset, place.goal))

    return [board for board in boards if board.place.batch_size == smallest(board.place)]


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


def _in_rounds(
    place: Place, ranking: GoalRanking, records: list[Record], utility: Utility, waiting: tuple[CellSpec, ...]
) -> Board:
    """The table of the round in which the control breaks most, with those of the other observed rounds."""
    groups = {name: gather(group) for name, group in _by_defense(records).items()}
    everything = [evidence for found in groups.values() for evidence in found]
    first = _ranking_moment(groups.get(utility.control) or everything, ranking)
    moments = dict.fromkeys([first, *(evidence.moment for evidence in everything)])
    shown, *others = (_ranked(place, ranking, records, utility, waiting, groups, moment) for moment in moments)
    return replace(shown, rounds=tuple(others))


def _ranked(
    place: Place,
    ranking: GoalRanking,
    records: list[Record],
    utility: Utility,
    waiting: tuple[CellSpec, ...],
    groups: Mapping[str, list[Evidence]],
    moment: str | None,
) -> Board:
    """A table of a goal whose outcome is known target by target, in one observed round."""
    everything = [evidence for found in groups.values() for evidence in found]
    here = {name: aligned([e for e in found if e.moment == moment]) for name, found in groups.items()}
    rows = [row for row in (ranking.row(name, found) for name, found in here.items()) if row is not None]
    reasons = _why_nobody(place, ranking, rows, records, utility, waiting)
    notes = [*not_there_yet(waiting, len(records)), *reasons]
    notes += [*ranking.notes(everything, records, waiting), *_remarks(records)]
    found = {row.defense: len(here[row.defense][0].strata) for row in rows}
    items = known_goal(place.goal).items
    items = items if place.batch_size == 1 else f"batches of {place.batch_size} {items}"
    over = reported_half((len(row.strata) for row in rows), found.values(), items)
    order = _order(ranking, rows, records, utility, waiting, valid=not reasons)
    beside = ranking.plain_columns() if _any_adaptive(records) else ()
    extra = ranking.extra_columns(records)
    columns = (RANK, *COMMON, *ranking.columns(), *beside, *ranking.last_columns(), *extra.values())
    by_name = {row.defense: {**row.cells, **ranking.extra_cells(row.reported, extra)} for row in rows}
    body = [(name, {"rank": order[name], **by_name[name]}) for name in order]
    title = ", ".join(filter(None, [place.title, f"{moment} round" if moment else "", place.size]))
    table = _table(title, columns, body, notes, records, utility, waiting, over)
    caption = ranking.caption(records, place.batch_size)
    table = replace(table, caption=" ".join(filter(None, [caption, table.caption])))
    return Board(place, table, not reasons, utility, tuple(rows), over, waiting)


def _listed(
    place: Place, ranking: ListedRanking, records: list[Record], utility: Utility, waiting: tuple[CellSpec, ...]
) -> Board:
    """A table without ranks: defenses by name."""
    extra = ranking.extra_columns(records)
    found = {name: ranking.listed_cells(group, extra) for name, group in _by_defense(records).items()}
    body = [(name, cells) for name, cells in found.items() if cells is not None]
    control = found.get(utility.control)
    nothing = no_score(utility.control, records, waiting)
    why = nothing if control is None else ranking.why_listed_control_holds(control)
    beside = ranking.plain_columns() if _any_adaptive(records) else ()
    columns = (*COMMON, *ranking.columns(), *beside, *extra.values())
    notes = [*not_there_yet(waiting, len(records)), *([invalid(utility.control, why)] if why else [])]
    notes += [*_remarks(records), *ranking.notes((), records, waiting)]
    over = ranking.scope if body else ""
    table = _table(place.title, columns, body, notes, records, utility, waiting, over)
    return Board(place, table, not why, utility, over=over, waiting=waiting)


def _ranking_moment(control: list[Evidence], ranking: GoalRanking) -> str | None:
    """The observed round in which the control breaks most (anybody, where the control has no score at all)."""
    attacks = [evidence for evidence in control if not is_prior(evidence)] or control
    return max(attacks, key=ranking.harm).moment if attacks else None


def _why_nobody(
    place: Place,
    ranking: GoalRanking,
    rows: Sequence[RankedRow],
    records: Sequence[Record],
    utility: Utility,
    waiting: Sequence[CellSpec],
) -> list[str]:
    """Why a table ranks nobody: its control does not break, or what else its goal asks for; empty where it ranks."""
    control = _by_name(rows).get(utility.control)
    why = no_score(utility.control, records, waiting) if control is None else ranking.why_control_holds(control)
    reasons = [invalid(utility.control, why)] if why else []
    return reasons + ranking.why_nobody(records, utility.control, place.about)


def _of(name: str, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.cell.training.defense.label == name]


def _by_name(rows: Sequence[RankedRow]) -> dict[str, RankedRow]:
    return {row.defense: row for row in rows}


def _order(
    ranking: GoalRanking,
    rows: Sequence[RankedRow],
    records: Sequence[Record],
    utility: Utility,
    waiting: Sequence[CellSpec],
    *,
    valid: bool,
) -> dict[str, Cell]:
    """The cell of the rank of every defense, in the order of the table; those that may not be ranked come last."""
    by_name = _by_name(rows)
    able = [row for row in rows if not _why_not(row.defense, utility, records, waiting)]
    names = [row.defense for row in sorted(able, key=lambda row: row.order)]
    found = ranks(names, lambda a, b: ranking.compare(by_name[a], by_name[b])) if valid else dict.fromkeys(names)
    return {name: Cell(found.get(name)) for name in [*found, *(name for name in by_name if name not in found)]}


def _table(
    title: str,
    columns: Sequence[Column],
    body: Sequence[tuple[str, dict[str, Cell]]],
    notes: Sequence[str],
    records: Sequence[Record],
    utility: Utility,
    waiting: Sequence[CellSpec],
    over: str,
) -> Table:
    """The table with what every one has: accuracy, budget, the utility gate and its remark, the best marked.

    Below those of `body` stand the defenses without any score, each with the reason.
    """
    without = silent((name for name, _ in body), records, waiting)
    every = [*body, *((name, {column.key: Cell(None) for column in columns}) for name in without)]
    budgets = {name: epsilon_cells(_of(name, records)) for name, _ in every} if RANK in columns else {}
    spent = epsilon_columns(budgets)
    where = columns.index(COMMON[-1]) + 1
    columns = (*columns[:where], *spent, *columns[where:])
    rows = []
    for name, cells in every:
        why = _why_not(name, utility, records, waiting)
        first = columns[0].key
        mine = {**cells, **budgets.get(name, {}), "defense": Cell(name), "accuracy": utility.cell(name)}
        mine[first] = replace(mine[first], note=why)
        rows.append(Row({c.key: mine[c.key] for c in columns if c.key in mine}, muted=bool(why)))
    gate = [utility.note] if RANK in columns else []
    gate += [EXACT_NOTE] if any(column.title.startswith("ε exact") for column in spent) else []
    caption = f"Scores are over {over}." if over else ""
    table = Table(title, tuple(columns), tuple(rows), (*notes, *gate), caption)
    return table.mark_best() if sum(not row.muted for row in rows) > 1 else table


def _remarks(records: Sequence[Record]) -> list[str]:
    """What the reader must know of the attacks: which gave no score, and whether any knew the defense."""
    broken = [record for record in records if record.status != "ok"]
    notes = [f"{len(broken)} of {len(records)} cells did not give a score; see the list of cells."] if broken else []
    if not _any_adaptive(records):
        notes.append(
            "Only plain attacks ran here: none of them knows the defense. A good rank shows no more than that."
        )
    names = {label for r in records for label in (r.cell.attack.label, r.cell.training.defense.label)}
    return notes + explained(" ".join(sorted(names)))


def _any_adaptive(records: Sequence[Record]) -> bool:
    """Whether any attack gave an answer and really used what it knows of the defense."""

    def used(record: Record) -> bool:
        plain = any(flag.startswith(NOTHING_TO_IMITATE) for flag in record.flags)
        return record.cell.adaptive and record.status == "ok" and not plain

    return any(used(record) for record in records)


def _why_not(name: str, utility: Utility, records: Sequence[Record], waiting: Sequence[CellSpec]) -> str:
    """Why a defense is not ranked: it does not train, or an attack on it gave no answer (which must not be a win)."""
    silence = unanswered(_of(name, records), [cell for cell in waiting if cell.training.defense.label == name])
    if name in utility.accuracy and not utility.passes(name):
        return diverged(_of(name, records)) or utility.verdict(name)
    return silence or ("" if utility.passes(name) else utility.verdict(name))
