"""Audit: the trials of the distinguishing game, handed out in portions, and the form of their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from leakboard.attacks.base import Attack, AuditAnswer, AuditAttack, AuditTask, Knowledge
from leakboard.federation.settings import Public
from leakboard.leaderboard.goals.question import Asked, AttackFailed, CellFacts, GoalQuestion
from leakboard.leaderboard.goals.questions.audit_game import open_game


class AuditQuestion(GoalQuestion):
    """Which of two neighbouring batches did the victim hold, trial by trial?"""

    method: ClassVar[str] = "distinguish"
    answer_type: ClassVar[type[AuditAnswer]] = AuditAnswer

    def ask(self, facts: CellFacts, knowledge: Knowledge) -> Asked:
        """A task without a trial yet: all trials are in the portions."""
        game = open_game(facts)
        return Asked(game.task(()), game.portions())

    def run(self, attack: Attack, knowledge: Knowledge, task: AuditTask, portions: Iterable[AuditTask]) -> AuditAnswer:
        """Score portion after portion; flags once, diagnostics as means over the portions."""
        answers: list[AuditAnswer] = []
        for portion in portions:
            answer: AuditAnswer = self.call(attack, knowledge, portion)
            self.accept(answer, portion, knowledge.public)
            if len(answer.scores) != len(portion.trials):
                raise TypeError(f"the attack must return {len(portion.trials)} scores; given: {len(answer.scores)}")
            answers.append(answer)
        flags = tuple(dict.fromkeys(flag for answer in answers for flag in answer.flags))
        names = {name for answer in answers for name in answer.diagnostics}
        means = {n: sum(a.diagnostics.get(n, 0.0) for a in answers) / len(answers) for n in sorted(names)}
        return AuditAnswer(torch.cat([answer.scores for answer in answers]), flags, means)

    def check(self, answer: AuditAnswer, task: AuditTask, public: Public) -> None:
        """One finite number per trial; the score knows how many there must be."""
        given = answer.scores
        if not isinstance(given, Tensor) or given.ndim != 1 or not given.is_floating_point():
            raise AttackFailed(f"scores must be one vector of floats; given: {type(given).__name__}")
        if not bool(given.isfinite().all()):
            raise AttackFailed("scores must be finite numbers")

    def tensors(self, answer: AuditAnswer) -> dict[str, Tensor]:
        """One vector."""
        return {"trials": answer.scores.detach().cpu().double()}

    def restore(
        self, tensors: Mapping[str, Tensor], flags: tuple[str, ...], diagnostics: Mapping[str, float]
    ) -> AuditAnswer:
        """The vector, and nothing else."""
        if set(tensors) != {"trials"}:
            raise ValueError(f"must be trials; given: {sorted(tensors)!r:.80}")
        return AuditAnswer(tensors["trials"], flags, diagnostics)

    def most_bytes(self, task: AuditTask, public: Public, attack: Attack) -> int:
        """A double per trial."""
        return 8 * (attack.trials if isinstance(attack, AuditAttack) else 0)
