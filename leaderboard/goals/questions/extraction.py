"""Extraction: which model is asked for, and the form of a stolen one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from leakboard.attacks.base import Attack, ExtractionAnswer, ExtractionTask, Knowledge
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.leaderboard.goals.question import Asked, AttackFailed, CellFacts, GoalQuestion


class ExtractionQuestion(GoalQuestion):
    """What is the global model of an observed round?"""

    method: ClassVar[str] = "extract"
    answer_type: ClassVar[type[ExtractionAnswer]] = ExtractionAnswer

    def ask(self, facts: CellFacts, knowledge: Knowledge) -> Asked:
        """The observed round."""
        return Asked(ExtractionTask(*facts.observed_round()))

    def check(self, answer: ExtractionAnswer, task: ExtractionTask, public: Public) -> None:
        """The names, shapes and kinds of the public network's own tensors, all of them finite."""
        like = task_of(public).initial(0)
        if not isinstance(answer.model, dict):
            raise AttackFailed(f"the model must be tensors by name; given: {type(answer.model).__name__}")
        if set(answer.model) != set(like):
            wrong = sorted(map(str, set(answer.model) ^ set(like)))
            raise AttackFailed(
                f"the model must have the public network's own tensors; missing or unknown: {wrong!r:.80}"
            )
        for name, wanted in like.items():
            value = answer.model[name]
            fits = isinstance(value, Tensor) and value.shape == wanted.shape
            if not fits or value.is_floating_point() != wanted.is_floating_point():
                given = (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
                raise AttackFailed(f"the model's {name} must be {(wanted.dtype, tuple(wanted.shape))}; given: {given}")
            if not bool(value.isfinite().all()):
                raise AttackFailed(f"the model's {name} must hold finite numbers")

    def tensors(self, answer: ExtractionAnswer) -> dict[str, Tensor]:
        """The model's own tensors."""
        return {f"model/{name}": value.detach().cpu() for name, value in answer.model.items()}

    def restore(
        self, tensors: Mapping[str, Tensor], flags: tuple[str, ...], diagnostics: Mapping[str, float]
    ) -> ExtractionAnswer:
        """The model's own tensors."""
        if not all(name.startswith("model/") for name in tensors):
            raise ValueError("a stolen model has no other tensors than its own")
        model = {name.removeprefix("model/"): value for name, value in tensors.items()}
        return ExtractionAnswer(model, flags, diagnostics)

    def most_bytes(self, task: ExtractionTask, public: Public, attack: Attack) -> int:
        """All values of the network as doubles."""
        return 8 * sum(value.numel() for value in task_of(public).initial(0).values())
