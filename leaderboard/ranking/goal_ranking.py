"""How a goal is ranked: the part of a goal that tables, figures and cards are made of.

`GoalRanking` works as it is for every goal whose harm is one metric with a value per item: a subclass that names the
metric (`primary`) and what a guess gives (`guess`) is enough. Our own goals are in `ranking/goals/`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from leakboard.core import registry
from leakboard.core.plugins import Plugin
from leakboard.leaderboard.ranking.evidence import Evidence, compare, mean_interval
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
from leakboard.leaderboard.records.known import known_goal, known_metric
from leakboard.leaderboard.records.record import PRIOR, CellSpec, Record
from leakboard.leaderboard.tables.marks import BROKEN as BROKEN
from leakboard.leaderboard.tables.marks import HELD as HELD
from leakboard.leaderboard.tables.marks import NO_CLAIM as NO_CLAIM
from leakboard.leaderboard.tables.marks import NOT_ASKED as NOT_ASKED
from leakboard.leaderboard.tables.marks import NOT_SHOWN as NOT_SHOWN
from leakboard.leaderboard.tables.marks import WORDS
from leakboard.leaderboard.tables.metric_columns import extra_key, metric_column, other_metrics
from leakboard.leaderboard.tables.table import Cell, Column

Floats = NDArray[np.float64]
#: what the reason begins with where the control looks broken, but so few targets do not prove it
TOO_FEW = "too few targets"


class Question(NamedTuple):
    """A column of the scoreboard; both parts follow the threat: `name` is for programs, `title` for people."""

    name: str
    title: str


class GoalRanking(Plugin):
    """Base of all rankings; `name` is that of the goal.

    A subclass may set `primary` and `guess` alone, or replace any method.
    """

    kind: ClassVar[str] = "ranking"
    #: the column that tells the harm; by default it is also the metric
    primary: ClassVar[str]
    #: what a guess reaches in the primary column; None where that is not known
    guess: ClassVar[float | None] = None
    #: the harms by which rows are compared, the first that tells two apart decides; empty: the primary column alone
    criteria: ClassVar[tuple[str, ...]] = ()
    #: what its verdicts mean, in words
    words: ClassVar[Mapping[str, str]] = WORDS

    # --- the table ------------------------------------------------------------------------------

    def columns(self) -> tuple[Column, ...]:
        """The columns of the worst attack, its name first."""
        return ATTACK, self._column()

    def plain_columns(self) -> tuple[Column, ...]:
        """The columns of the best plain attack, shown where an adaptive one ran."""
        return PLAIN_ATTACK, of_plain(self._column())

    def last_columns(self) -> tuple[Column, ...]:
        """Columns that stand after those of the plain attack."""
        return ()

    def own_metrics(self) -> tuple[str, ...]:
        """The metrics that the columns show already; all other metrics of the goal get a column each."""
        named = {entry for entry in known_goal(self.name).listed if isinstance(entry, str)}
        return tuple(named | {self.primary})

    def harm(self, evidence: Evidence) -> tuple[float, ...]:
        """The harm that an attack did, more is worse; the first number decides, the next ones break ties."""
        if self.primary not in evidence.values:
            return (-math.inf,)
        return (float(self._harms(evidence).mean()),)

    def row(self, defense: str, found: list[Evidence]) -> RankedRow | None:
        """A defense's row: its worst attack and the worst plain one; None where nothing can be said."""
        picked = worst_and_plain([one for one in found if self.primary in one.values], self.harm)
        if picked is None:
            return None
        reported, plain, chosen = picked
        beside = {} if plain is None else self.cells(plain)
        cells = with_plain(self.cells(reported), beside, self.plain_columns())
        harms = {self.primary: self._harms(reported)}
        return RankedRow(defense, cells, self.harm(reported), harms, reported, plain, self.harm(chosen))

    def cells(self, reported: Evidence) -> dict[str, Cell]:
        """The cells of an attack on its reported items, by the keys of `columns`."""
        return {"attack": attack_cell(reported), self.primary: metric_cell(reported, self.primary)}

    def extra_columns(self, records: Sequence[Record]) -> dict[str, Column]:
        """By metric: a column for each one in these records that `own_metrics` does not have."""
        found = other_metrics(records, self.own_metrics())
        return {metric.name: metric_column(metric, key=extra_key(metric.name), ranked=True) for metric in found}

    def extra_cells(self, reported: Evidence, columns: Mapping[str, Column]) -> dict[str, Cell]:
        """The cells of those columns: over the reported items, or over all where a metric has no values per item."""
        return {column.key: metric_cell(reported, name) for name, column in columns.items()}

    def compare(self, first: RankedRow, second: RankedRow) -> int:
        """-1 or 1 where the first leaks less or more, 0 for a tie."""
        common = np.intersect1d(first.strata, second.strata)
        if not len(common):
            return 0  # no seed worked for both: nothing tells them apart
        left, right = np.isin(first.strata, common), np.isin(second.strata, common)
        return compare(
            {name: values[left] for name, values in first.harms.items()},
            {name: values[right] for name, values in second.harms.items()},
            first.strata[left],
            self.criteria or (self.primary,),
        )

    # --- what the reader must know --------------------------------------------------------------

    def why_control_holds(self, control: RankedRow) -> str:
        """Why the attacks show nothing, because even the control does not break; "" where it does."""
        if self.leaks(control):
            return ""
        return f"its {self._column().title} is not beyond what a guess gives"

    def why_nobody(self, records: Sequence[Record], control: str, about: str) -> list[str]:
        """Other reasons, in whole sentences, why a table ranks nobody."""
        return []

    def notes(self, found: Sequence[Evidence], records: Sequence[Record], waiting: Sequence[CellSpec]) -> list[str]:
        """Remarks of this goal under its tables."""
        return []

    def caption(self, records: Sequence[Record], batch_size: int) -> str:
        """What stands above a table of this goal, beside the scope of its scores."""
        return ""

    # --- the scoreboard and the progress ----------------------------------------------------------

    def question(self, about: str) -> Question:
        """The goal's column on the scoreboard; `about` is one of the goal's own."""
        words = self.name.replace("-", " ") if about == "training" else f"{self.name.replace('-', ' ')} ({about})"
        return Question(words, words)

    def answer(self, cells: Mapping[str, Cell]) -> Cell:
        """What that column shows for a defense, from the cells of its row: the primary column in a short form."""
        cell, column = cells[self.primary], self._primary_column()
        if not isinstance(cell.value, (int, float)):
            return cell
        return replace(cell, text=short(float(cell.value), column.unit), note="", best=False)

    def told(self, record: Record) -> str:
        """What the attack of a record achieved, after "the server ..."; nothing where the record has no such score."""
        score = record.scores.get(self.primary)
        if score is None or score.value is None:
            return ""
        metric = known_metric(self.primary, score.unit)
        return f"reaches {metric.title} {short(score.value, score.unit)}"

    # --- cards and figures ----------------------------------------------------------------------

    def leaks(self, row: RankedRow) -> bool:
        """Whether the worst attack did better than a guess; by its interval, where it is known what a guess gives."""
        cell = row.cells[self.primary]
        if self.guess is None:
            return cell.is_number
        if self._more_is_harm():
            return above(cell, self.guess)
        return cell.high is not None and cell.high < self.guess

    def colour(self, value: float) -> float:
        """The harm of a value in the primary column on the common scale from 0 (none) to 1 (all)."""
        low, high = self._bounds()
        return (value - low) / (high - low) if self._more_is_harm() else (high - value) / (high - low)

    # --- inside ---------------------------------------------------------------------------------

    def _primary_column(self) -> Column:
        return next(column for column in self.columns() if column.key == self.primary)

    def _column(self) -> Column:
        return metric_column(known_metric(self.primary), ranked=True)

    def _more_is_harm(self) -> bool:
        return known_metric(self.primary).higher_is_better is not False

    def _bounds(self) -> tuple[float, float]:
        low, high = registry.find("metric", self.primary)["bounds"]
        return (0.0 if low is None else low), (1.0 if high is None else high)

    def _harms(self, evidence: Evidence) -> Floats:
        values = evidence.values[self.primary]
        return values if self._more_is_harm() else -values


class ListedRanking(GoalRanking):
    """Base for goals whose defenses are listed by name and get no ranks."""

    #: over which items the scores of its tables are, in words
    scope: ClassVar[str]

    @abstractmethod
    def listed_cells(self, records: Sequence[Record], extra: Mapping[str, Column]) -> dict[str, Cell] | None:
        """The cells of a defense from its records, those of the extra columns too; None where nothing can be said."""

    @abstractmethod
    def why_listed_control_holds(self, control: dict[str, Cell]) -> str:
        """Why the attacks show nothing, from the control's cells; "" where it breaks."""

    @abstractmethod
    def listed_verdict(self, cells: Mapping[str, Cell], *, valid: bool) -> tuple[str, str]:
        """The verdict on a card and why, if all attacks gave an answer; `valid`: the control breaks."""


def metric_cell(reported: Evidence, name: str) -> Cell:
    """A metric of the reported items with its interval; of one without values per item the mean over seeds."""
    values = reported.values.get(name)
    if values is not None:
        return bounded(float(values.mean()), mean_interval(values, reported.strata))
    scores = [record.scores[name] for record in reported.records if name in record.scores]
    known = [score.value for score in scores if score.value is not None]
    reasons = [score.reason for score in scores if score.value is None]
    return Cell(float(np.mean(known)) if known else None, note="" if known else "; ".join(reasons[:1]))


def short(value: float, unit: str = "") -> str:
    """A number for the scoreboard: per cent with at most one digit, everything else with two.

    >>> short(100.0, "%"), short(62.5, "%"), short(0.5037), short(-0.001)
    ('100 %', '62.5 %', '0.50', '0.00')
    """
    if unit == "%":
        return f"{value:.1f}".removesuffix(".0") + " %"
    shown = f"{value:.2f}"
    return " ".join(filter(None, [shown.removeprefix("-") if float(shown) == 0 else shown, unit]))


def headline(record: Record) -> str:
    """A finished cell in one short line with its main score; nothing where it has none.

    Such as `fedsgd: server recovers 8 of 8 images (inverting-gradients, first round)`.
    """
    cell = record.cell
    told = ranking_of(cell.goal).told(record) if record.status == "ok" else ""
    if not told:
        return ""
    who = "a guess" if cell.attack.name == PRIOR else cell.threat
    several = [f"batch of {cell.batch_size}"] if cell.batch_size > 1 else []
    several += [f"{100 * cell.pool_share:g} % pool"] if cell.pool_share < 1 else []
    how = [cell.attack.label, *([f"{cell.moment} round"] if cell.moment else []), *several]
    return f"{cell.training.defense.label}: {who} {told} ({', '.join(how)})"


def ranking_of(goal: str) -> GoalRanking:
    """How a goal is ranked."""
    return _ranking(goal, registry.loaded_modules())


@cache
def _ranking(goal: str, _loaded: tuple[ModuleType, ...]) -> GoalRanking:
    return cast(GoalRanking, registry.create("ranking", goal))
