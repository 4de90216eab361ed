"""The scoreboard: one row per defense, one column per question, a mark in every cell.

It is built once, as values, from the leaderboards. Terminal, page, data frame and formats show the same object. The
title of a column and the text of its cells come from the ranking half of its goal (`GoalRanking.question` and
`answer`), so a goal from outside the tree has its column too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from leakboard.core.glossary import explained
from leakboard.core.seeds import natural_order
from leakboard.leaderboard.ranking.epsilons import claims_of, number
from leakboard.leaderboard.ranking.goal_ranking import ranking_of, short
from leakboard.leaderboard.ranking.leaderboards import Board, Place
from leakboard.leaderboard.ranking.silence import diverged, failed_training
from leakboard.leaderboard.ranking.utility_gate import Utility
from leakboard.leaderboard.ranking.verdicts import Finding, questions, worst_finding
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.marks import SIGNS, WORDS
from leakboard.leaderboard.tables.phase_times import round_seconds, timed_trainings
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

DEFENSE = Column("defense", "defense")
ACCURACY = Column("accuracy", "accuracy", help="test accuracy of the global model")
#: the length of an attack's short name
SHORT = 6


@dataclass(frozen=True)
class ScoreColumn:
    """A question: `name` is the column of a data frame, `title` that of a table, `place` its first leaderboard.

    `cases` are the leaderboards of all its observed rounds, batch sizes and pools.
    """

    place: Place
    name: str
    title: str
    help: str = ""
    cases: tuple[Board, ...] = ()


@dataclass(frozen=True)
class ScoreCell:
    """The answer to a question for one defense: value and interval, mark with its reason, attack, records behind it."""

    answer: Cell
    finding: Finding

    @property
    def mark(self) -> str:
        """The verdict."""
        return self.finding.verdict

    @property
    def why(self) -> str:
        """The reason of the verdict, where it needs one."""
        return self.finding.why

    @property
    def attack(self) -> str:
        """The worst attack; empty where there is no score."""
        return str(self.finding.attack.value) if self.finding.attack is not None else ""

    @property
    def adaptive(self) -> bool:
        """Whether that attack knows the defense."""
        return self.finding.attack is not None and bool(self.finding.attack.note)

    @property
    def knows(self) -> str:
        """The short name of an attack that knows the defense; empty for a plain one.

        That is the first word of its label, cut to six characters.
        """
        word = self.attack.split("-")[0]
        return "" if not self.adaptive else word if len(word) <= SHORT else f"{word[: SHORT - 1]}."

    @property
    def records(self) -> tuple[str, ...]:
        """The keys of the records behind the score, one per seed."""
        return self.finding.records


@dataclass(frozen=True)
class ScoreRow:
    """A defense: accuracy, claimed epsilon, cost as a multiple of the control's, and its answers by column name.

    `unranked` says why it is in no ranking; empty where it is.
    """

    defense: str
    accuracy: Cell
    claimed: float | None
    cost: float | None
    cells: Mapping[str, ScoreCell]
    unranked: str = ""


@dataclass(frozen=True)
class Scoreboard:
    """The scoreboard of one data set; the control's row is the first, and rows that are not ranked are the last."""

    dataset: str
    control: str
    columns: tuple[ScoreColumn, ...]
    rows: tuple[ScoreRow, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def title(self) -> str:
        """The title of its table."""
        return f"Scoreboard, {self.dataset}"

    @property
    def cost_title(self) -> str:
        """The title of the last column."""
        return f"cost of a round (× {self.control})"

    @property
    def has_cost(self) -> bool:
        """Whether the cost of any defense but the control is known."""
        return any(row.cost is not None for row in self.rows if row.defense != self.control)

    def sentence(self, row: ScoreRow) -> str:
        """What was found about a defense, in one sentence."""
        parts = []
        if row.accuracy.is_number:
            parts.append(f"{short(float(row.accuracy.value or 0), '%')} accuracy")
        for mark in SIGNS:
            told: dict[str, list[str]] = {}
            for column in self.columns:
                cell = row.cells.get(column.name)
                if cell is not None and cell.mark == mark:
                    told.setdefault(cell.finding.said, []).append(_told(column, cell))
            parts += [f"{words}: {', '.join(answers)}" for words, answers in told.items()]
        return f"{row.defense}: {'; '.join(parts)}." if parts else f"{row.defense}: {row.unranked or 'no result yet'}."

    def table(self) -> Table:
        """The scoreboard for every format of tables; unranked rows are below the line and say why."""
        columns = [DEFENSE, ACCURACY, *(Column(c.name, c.title, help=c.help) for c in self.columns)]
        columns += [Column("cost", self.cost_title, help="CPU seconds of a round")] if self.has_cost else []
        kept = {column.key for column in columns}
        rows = []
        for row in self.rows:
            cells = {"defense": Cell(row.defense, note=row.unranked and f"not ranked: {row.unranked}")}
            cells["accuracy"] = _short_accuracy(row.accuracy)
            cells |= {name: table_cell(cell) for name, cell in row.cells.items()}
            cells["cost"] = Cell(row.cost, text=None if row.cost is None else times(row.cost))
            rows.append(Row({k: c for k, c in cells.items() if k in kept}, muted=bool(row.unranked)))
        return Table(self.title, tuple(columns), tuple(rows), self.notes)


def _told(column: ScoreColumn, cell: ScoreCell) -> str:
    """A cell in a sentence: the question, the answer, and who knows the defense."""
    said = cell.answer.text or ""
    by = f"by {cell.attack}" if cell.adaptive else ""
    inside = ", ".join(filter(None, [said, by]))
    return f"{column.title} ({inside})".replace(" (AUC) (", " (AUC ") if inside else column.title


def _short_accuracy(cell: Cell) -> Cell:
    if not isinstance(cell.value, (int, float)):
        return cell
    return Cell(cell.value, cell.low, cell.high, text=short(float(cell.value), "%"), note=cell.note)


def table_cell(cell: ScoreCell) -> Cell:
    """A cell of the table: the mark, the answer in short, the name of an attack that knows the defense."""
    answer = cell.answer
    text = " ".join(filter(None, [answer.text, cell.knows])) if answer.text else None
    link = cell.records[0] if cell.records else ""
    return Cell(answer.value, answer.low, answer.high, text=text, link=link, mark=cell.mark)


def times(ratio: float) -> str:
    """A multiple with two digits, whole numbers from 10 on.

    >>> times(1.0), times(2.345), times(0.987), times(1234.5)
    ('1.0', '2.3', '0.99', '1,234')
    """
    return f"{ratio:,.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 0.995 else f"{ratio:.2g}"


# --- from leaderboards to scoreboards -----------------------------------------------------------


def scoreboards(boards: Sequence[Board], records: Sequence[Record]) -> list[Scoreboard]:
    """One scoreboard per data set; columns without any value are left out."""
    found = []
    for dataset in dict.fromkeys(board.place.dataset for board in boards):
        here = [board for board in boards if board.place.dataset == dataset]
        mine = [record for record in records if record.cell.training.dataset.label == dataset]
        found.append(_scoreboard(dataset, here, mine))
    return found


def _scoreboard(dataset: str, boards: Sequence[Board], records: Sequence[Record]) -> Scoreboard:
    utility = boards[0].utility
    # what the server can do comes first
    asked = sorted(questions(boards), key=lambda cases: cases[0].place.threat == "client")
    columns = _different([_column(cases) for cases in asked])
    names = natural_order({record.cell.training.defense.label for record in records})
    costs = _costs(records, utility.control)
    rows = []
    for name in sorted(names, key=lambda label: label != utility.control):  # the control first
        own = [record for record in records if record.cell.training.defense.label == name]
        cells = {column.name: _cell(column, name, own) for column in columns}
        claimed = number(claims_of(own), "epsilon_claimed")
        rows.append(
            ScoreRow(name, _accuracy(name, utility), claimed, costs.get(name), cells, _unranked(name, own, utility))
        )
    used = {name for row in rows for name, cell in row.cells.items() if cell.answer.value is not None}
    kept = tuple(column for column in columns if column.name in used)
    shown = tuple(_with_cells(row, used) for row in sorted(rows, key=lambda row: bool(row.unranked)))
    symbols = {row.defense for row in shown} | {cell.attack for row in shown for cell in row.cells.values()}
    notes = (*_own_words(kept), *_legend(shown), *explained(" ".join(sorted(symbols))), *_worst_cases(kept, shown))
    return Scoreboard(dataset, utility.control, kept, shown, notes)


def _column(cases: Sequence[Board]) -> ScoreColumn:
    """The column of a question: who attacks, and what is asked; batch size and pool where all cases have the same."""
    place = cases[0].place
    question = ranking_of(place.goal).question(place.about)
    sizes, shares = ({getattr(case.place, axis) for case in cases} for axis in ("batch_size", "share"))
    more = [f"batch of {place.batch_size}"] if sizes == {place.batch_size} != {1} else []
    more += [f"{100 * place.share:g} % pool"] if shares == {place.share} != {1} else []
    beside = f" ({', '.join(more)})" if more else ""
    name, title = (f"{place.threat}: {words}{beside}" for words in question)
    words = f"the worst attack of the table “{place.title}”"
    words += " in its worst round and batch size" if len(cases) > 1 else ""
    return ScoreColumn(place, name, title, words, tuple(cases))


def _different(columns: Sequence[ScoreColumn]) -> list[ScoreColumn]:
    """The columns with different names: goals of two authors may use the same words."""
    names = Counter(column.name for column in columns)
    return [c if names[c.name] == 1 else replace(c, name=f"{c.name} [{c.place.goal}]") for c in columns]


def _cell(column: ScoreColumn, name: str, own: Sequence[Record]) -> ScoreCell:
    finding = worst_finding(column.cases, name, own)
    if finding.attack is None or finding.row is None:
        return ScoreCell(Cell(None), finding)
    return ScoreCell(ranking_of(finding.place.goal).answer(finding.row.cells), finding)


def _with_cells(row: ScoreRow, names: set[str]) -> ScoreRow:
    return replace(row, cells={name: cell for name, cell in row.cells.items() if name in names})


def _unranked(name: str, own: Sequence[Record], utility: Utility) -> str:
    """Why a defense is in no ranking: its training failed, or it is below the utility gate."""
    if utility.passes(name):
        return ""
    if broken := diverged(own):
        return broken
    if name in utility.accuracy:
        return f"below the utility gate ({100 * utility.needed_by(name):.1f} % accuracy needed)"
    failed = failed_training(own)
    return f"its training failed: {failed.removeprefix('its training failed: ')}" if failed else utility.verdict(name)


def _accuracy(name: str, utility: Utility) -> Cell:
    """The accuracy, with a short remark where it is near the gate: rankings have the interval."""
    cell = utility.cell(name)
    if utility.standing(name) != "near":
        return cell
    return replace(cell, note=f"near the utility gate ({100 * utility.needed_by(name):.1f} % accuracy), ranked")


def _costs(records: Sequence[Record], control: str) -> dict[str, float]:
    """The CPU seconds of a round as multiples of the control's; of several settings the largest."""
    found: dict[str, float] = {}
    for trainings in timed_trainings(records).values():
        base = round_seconds(trainings.get(control, []))
        for name, mine in trainings.items():
            seconds = round_seconds(mine)
            if base and seconds is not None:
                found[name] = max(found.get(name, 0.0), seconds / base)
    return found


def _own_words(columns: Sequence[ScoreColumn]) -> list[str]:
    """What the signs mean in columns whose goal has words of its own."""
    own = {column.title: ranking_of(column.place.goal).words for column in columns}
    return [
        f"{title}: {', '.join(f'{SIGNS[verdict]} {said}' for verdict, said in words.items())}."
        for title, words in own.items()
        if words is not WORDS
    ]


def _legend(rows: Sequence[ScoreRow]) -> list[str]:
    """What the short names after a value are."""
    named: dict[str, set[str]] = {}
    for cell in (cell for row in rows for cell in row.cells.values() if cell.knows):
        named.setdefault(cell.knows, set()).add(cell.attack)
    if not named:
        return []
    told = "; ".join(f"{name}: {', '.join(natural_order(named[name]))}" for name in natural_order(named))
    return [f"A name after a value: the worst attack knows the defense ({told})."]


def _worst_cases(columns: Sequence[ScoreColumn], rows: Sequence[ScoreRow]) -> list[str]:
    """Which observed round, batch size and pool the scores are from: the most frequent case, then the exceptions."""
    told = []
    for column in columns:
        groups: dict[str, list[str]] = {}
        for row in rows:
            finding = row.cells[column.name].finding
            if finding.attack is not None and len(column.cases) > 1:
                groups.setdefault(_case(finding, column), []).append(row.defense)
        usual, *others = sorted(groups, key=lambda case: -len(groups[case])) or [""]
        but = "; ".join(f"{case} for {', '.join(groups[case])}" for case in others)
        told += [f"{column.title}: {usual}" + (f" ({but})" if but else "")] if usual else []
    if not told:
        return []
    how = "chosen on the half of the targets that the scores are not over"
    return [f"Shown is the worst case of each defense, {how}. {'. '.join(told)}."]


def _case(finding: Finding, column: ScoreColumn) -> str:
    """Such as `first round, batch size 8`; what all cases of a question share is left out."""
    places = [case.place for case in column.cases]
    parts = [f"{finding.moment} round" if finding.moment else ""]
    parts += [finding.size] if len({place.batch_size for place in places}) > 1 else []
    parts += [f"{100 * finding.place.share:g} % pool"] if len({place.share for place in places}) > 1 else []
    return ", ".join(filter(None, parts))
