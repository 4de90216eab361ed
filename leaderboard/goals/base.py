"""What a goal is: everything about what an attack wants that is not the same for all attacks.

A goal is one class. Our own are the modules of this folder; those of others come from a plugin file (`--plugin`) or an
installed package (entry point group `leakboard.goals`). `docs/adding-a-goal.md` builds one in a single file.

A goal has three parts, because three kinds of work depend on it, and each has a key or a room of its own:

1. The **question** (`leaderboard.goals.question.GoalQuestion`): the task, the method of an attack that answers it, and
   the check, the form and the size bound of an answer. It decides an answer, so its file is in every answer's key. Our
   own goals keep it in `goals/questions/`.
2. The **score** (`Goal`, here): the truth, the metrics, the fields of the record. Its file is in every record's key, so
   a change here scores kept answers again and runs no attack.
3. The **ranking** (`leaderboard.ranking.goal_ranking.GoalRanking`): the harm, the columns and the row of a table, the
   test of the control, the verdict on a card. It is in no key. It needs tables and statistics, which come after cells
   in the order of rooms; so it is a class of its own, found by the goal's name, in `ranking/goals/` or in the file of
   the goal.

What the suite, the plan and the tables must know of a goal before anything of it runs are class variables. They stand
in the plugin index (`describe`), so that a table needs no goal's code (`leaderboard.records.known`).
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from leakboard.core.plugins import Plugin
from leakboard.leaderboard.goals.question import Answer, CellFacts, GoalQuestion
from leakboard.leaderboard.records.known import Listed
from leakboard.leaderboard.records.record import ScoreRecord
from leakboard.metrics.base import Metric, Score


class Goal(GoalQuestion, Plugin):
    """Base of all goals; the class variables have defaults that fit most goals."""

    kind: ClassVar[str] = "goal"
    #: what the items of a record are called, in the plural
    items: ClassVar[str] = "targets"
    #: whether there is one cell per observed round; otherwise a cell is about the whole training
    per_round: ClassVar[bool] = False
    #: whether there is one cell per batch size of the probes; otherwise a view holds the smallest alone
    per_batch_size: ClassVar[bool] = False
    #: which questions a suite may ask (`about`)
    about: ClassVar[tuple[str, ...]] = ("training",)
    #: the attack that guesses without any message, where the ranking needs it: it stays in every selection of attacks
    prior: ClassVar[str] = ""
    #: where the tables of this goal stand among those of others; equal ones go by name
    position: ClassVar[int] = 100
    #: whether the answer is kept and shown even where the clock ended the attack (its file is the record's pictures)
    shows_answer: ClassVar[bool] = False
    #: the order of columns in the list of all cells: metrics by name, and other columns; metrics that are not named
    #: here follow, by name
    listed: ClassVar[tuple[str | Listed, ...]] = ()
    #: the scores in a record's one line on the page; none: all of them
    headlines: ClassVar[tuple[str, ...]] = ()
    #: metrics without whose value per target no table can be made, and metrics that must at least give a reason
    per_target: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[tuple[str, ...]] = ()
    #: whether a record holds truth, score and decision of every target
    decides: ClassVar[bool] = False
    #: whether the items are the trials of a game: `member_scores` of the record, and its targets may repeat
    is_game: ClassVar[bool] = False

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What `list --json` prints; for a goal also all that suites, plans and tables must know of it."""
        plain = ("items", "per_round", "per_batch_size", "prior", "position", "decides", "is_game")
        several = ("about", "per_target", "expected", "headlines")
        listed = [entry if isinstance(entry, str) else entry._asdict() for entry in cls.listed]
        own = {name: getattr(cls, name) for name in plain} | {name: list(getattr(cls, name)) for name in several}
        return {**super().describe(), **own, "listed": listed}

    @classmethod
    def question_files(cls) -> list[str]:
        """The files that decide the answers: of every class that defines a method or variable of `GoalQuestion`."""
        names = {name for name in (*vars(GoalQuestion), *GoalQuestion.__annotations__) if not name.startswith("_")}
        owners = [parent for parent in cls.__mro__ if not names.isdisjoint(vars(parent))]
        files = (Path(str(sys.modules[owner.__module__].__file__)).resolve() for owner in owners)
        return list(dict.fromkeys(map(str, files)))

    @abstractmethod
    def truth(self, facts: CellFacts, answer: Any) -> Any:
        """What the metrics of this goal get: the answer beside the truth. Called after the attack has returned."""

    def items_of(self, facts: CellFacts, answer: Any) -> dict[str, Any]:
        """Further fields of the record: `target_indices` (dataset indices of what was attacked), and the like.

        A metric with one value per item has as many as there are `target_indices`.
        """
        return {}

    def remarks(self, facts: CellFacts, truth: Any, scores: dict[str, ScoreRecord]) -> list[str]:
        """Flags of the record beside those of the attack."""
        return []

    def details(self, facts: CellFacts) -> dict[str, float]:
        """Numbers that go into the details of every score."""
        return {}

    def score(self, facts: CellFacts, answer: Answer, metrics: Sequence[Metric]) -> dict[str, Any]:
        """The scores of an answer and what they are over, as fields of the record."""
        truth, details = self.truth(facts, answer), self.details(facts)
        scores = {metric.name: as_record(metric, metric.score(truth), details) for metric in metrics}
        return {
            "scores": scores,
            **self.items_of(facts, answer),
            "flags": [*answer.flags, *self.remarks(facts, truth, scores)],
            "diagnostics": dict(answer.diagnostics),
        }


def as_record(metric: Metric, score: Score, details: dict[str, float]) -> ScoreRecord:
    """A score as it stands in a record."""
    return ScoreRecord(
        value=score.value,
        unit=metric.unit,
        version=metric.version,
        reason=score.reason,
        per_item=list(score.per_item),
        details={**score.details, **details},
    )
