"""The first half of a goal: what the attack is asked, how it is called, and the form of its answer.

This half decides an answer, so its code is part of every answer's key. What the answer is scored against is in the
other half (`leaderboard.goals.base`): a change there scores kept answers again and runs no attack.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

from torch import Tensor

from leakboard.attacks.base import Attack, Knowledge
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import ImagePool
from leakboard.datasets.splits import Splits
from leakboard.defenses.base import Defense
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Moment, ObservedRounds, Public
from leakboard.federation.view import Threat, parse_threat
from leakboard.leaderboard.records.record import CellSpec, TrainingSummary

#: what goes into a record beside the scores; a record that is too large to be read would spoil more than its cell
MOST_REMARKS, LONGEST_REMARK, MOST_TEXT = 1000, 2000, 500_000


class AttackFailed(Exception):
    """The attack raised, or its answer cannot be used; carries its traceback for the record."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


class Answer(Protocol):
    """What every answer has: remarks for the record, and numbers by name."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Remarks for the record."""

    @property
    def diagnostics(self) -> Mapping[str, float]:
        """Numbers for the record, by name."""


@dataclass(frozen=True)
class CellFacts:
    """All that the harness knows of a cell. The attack never gets it: a goal makes the question and the truth of it.

    `private_seed` is the seed of everything that must not be guessed; `batch_size` is that of the probes in the view.
    """

    cell: CellSpec
    pool: ImagePool
    splits: Splits
    private_seed: int
    batch_size: int
    make_attack: Callable[[], Attack]
    make_defense: Callable[[], Defense]
    load_public: Callable[[], Public]
    load_summary: Callable[[], TrainingSummary]
    #: the true global model (parameters by name) of an observed round, by the number of the round
    load_model: Callable[[int], Parameters]
    #: the places in the victim's shard that it trained on in an observed round; None where it dropped out
    load_batch: Callable[[int], Tensor | None]

    @property
    def threat(self) -> Threat:
        """The parties that the attacker controls."""
        return parse_threat(self.cell.threat, len(self.splits.shards))

    @property
    def observe(self) -> ObservedRounds:
        """Which rounds are observed, and with which probes."""
        return ObservedRounds.of_record(self.cell.training.observe)

    def observed_round(self) -> tuple[Moment, int]:
        """The observed round that the cell is about: its name and its number."""
        moment = self.cell.moment
        assert moment is not None
        observed = self.load_summary().observed
        if moment not in observed:
            raise Unsupported(f"the run is so short that its {moment} round is another observed one")
        return cast(Moment, moment), observed[moment]


@dataclass(frozen=True)
class Asked:
    """What the attack is handed: a task, and where the work comes in parts, those parts, one after another."""

    task: Any
    portions: Iterable[Any] = ()


class GoalQuestion(ABC):
    """Question and answer of a goal. A task and an answer are frozen dataclasses of the goal's own.

    Both travel between processes: the task is pickled towards the attack; the answer comes back as tensors by name
    (safetensors), and is never unpickled.
    """

    #: the method of an attack that answers: it takes (knowledge, task) and returns an `answer_type`
    method: ClassVar[str]
    answer_type: ClassVar[type[Any]]

    @abstractmethod
    def ask(self, facts: CellFacts, knowledge: Knowledge) -> Asked:
        """The task of a cell; `Unsupported`, with the reason, where the cell makes no sense."""

    def run(self, attack: Attack, knowledge: Knowledge, task: Any, portions: Iterable[Any]) -> Any:
        """Let the attack answer, in its own process. What it returns is checked after this."""
        return self.call(attack, knowledge, task)

    def call(self, attack: Attack, knowledge: Knowledge, task: Any) -> Any:
        """Call the attack's method; TypeError where it has none, or returns something of another kind."""
        method = getattr(attack, self.method, None)
        if method is None:
            raise TypeError(f"the attack '{attack.name}' has no method '{self.method}'")
        answer = method(knowledge, task)
        if not isinstance(answer, self.answer_type):
            raise TypeError(f"the attack must return a {self.answer_type.__name__}; given: {type(answer).__name__}")
        return answer

    def accept(self, answer: Any, task: Any, public: Public) -> None:
        """Refuse an answer of the wrong kind or form, and remarks that no record could hold.

        This is the only such check: the attack's process makes it before it sends, so that an honest mistake is told
        with its traceback, and the process that scores makes it again on what it received.
        """
        if not isinstance(answer, self.answer_type):
            raise AttackFailed(f"the attack must return an answer to its task; given: {type(answer).__name__}")
        self.check(answer, task, public)
        check_remarks(answer)

    @abstractmethod
    def check(self, answer: Any, task: Any, public: Public) -> None:
        """Raise `AttackFailed` where an answer has the wrong form: kinds, shapes, counts, numbers that are not finite.

        The answer is an `answer_type`, but its fields may hold anything.
        """

    @abstractmethod
    def tensors(self, answer: Any) -> dict[str, Tensor]:
        """A checked answer as tensors by name; they are kept in a file beside the record."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], flags: tuple[str, ...], diagnostics: Mapping[str, float]) -> Any:
        """The answer in these tensors, which anybody may have written: an error of any kind, or an answer to check."""

    @abstractmethod
    def most_bytes(self, task: Any, public: Public, attack: Attack) -> int:
        """The most bytes that the tensors of an answer can have: a longer answer is not received."""


def check_remarks(answer: Answer) -> None:
    """Refuse flags and diagnostics that a record cannot hold."""
    flags, diagnostics = answer.flags, answer.diagnostics
    if not isinstance(flags, tuple | list) or not isinstance(diagnostics, Mapping):
        given = f"{type(flags).__name__} and {type(diagnostics).__name__}"
        raise AttackFailed(f"flags must be a tuple of texts and diagnostics numbers by name; given: {given}")
    if len(flags) > MOST_REMARKS or len(diagnostics) > MOST_REMARKS:
        raise AttackFailed(f"at most {MOST_REMARKS} flags and diagnostics are kept")
    if not all(isinstance(flag, str) and len(flag) <= LONGEST_REMARK for flag in flags):
        raise AttackFailed(f"flags must be texts of at most {LONGEST_REMARK} characters")
    for name, value in diagnostics.items():
        if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
            raise AttackFailed(f"diagnostics must be finite numbers by name; given: {name!r:.40}: {value!r:.40}")
    if sum(map(len, (*flags, *diagnostics))) > MOST_TEXT:
        raise AttackFailed(f"flags and names of diagnostics may have {MOST_TEXT} characters together")
