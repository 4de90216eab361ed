"""Extraction: the global model, where a defense hides it from its clients."""

from __future__ import annotations

from typing import Any, ClassVar

from leakboard.attacks.base import ExtractionAnswer
from leakboard.federation.task import task_of
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.goals.question import CellFacts
from leakboard.leaderboard.goals.questions.extraction import ExtractionQuestion
from leakboard.leaderboard.records.known import Listed
from leakboard.metrics.base import ExtractionTruth


class Extraction(ExtractionQuestion, Goal):
    """Steal the global model of an observed round."""

    name: ClassVar[str] = "extraction"
    citation: ClassVar[str] = "Jagielski et al., High Accuracy and High Fidelity Extraction, USENIX Security 2020"
    items: ClassVar[str] = "test records"
    per_round: ClassVar[bool] = True
    position: ClassVar[int] = 2
    headlines: ClassVar[tuple[str, ...]] = ("fidelity",)
    listed: ClassVar[tuple[str | Listed, ...]] = ("fidelity", "stolen_accuracy", "canonical_distance")

    def truth(self, facts: CellFacts, answer: ExtractionAnswer) -> ExtractionTruth:
        """The stolen model beside the true one of the attacked round, both run on the test set."""
        task = task_of(facts.load_public())
        true = facts.load_model(facts.observed_round()[1])
        stolen = {name: answer.model[name].detach().cpu().to(value) for name, value in true.items()}
        test = facts.pool.take(facts.splits.test)
        return ExtractionTruth(
            stolen=stolen,
            true=true,
            network=task.skeleton(),
            stolen_logits=task.predict(stolen, test.images),
            true_logits=task.predict(true, test.images),
            labels=test.labels,
        )

    def items_of(self, facts: CellFacts, answer: ExtractionAnswer) -> dict[str, Any]:
        """The test records."""
        return {"target_indices": facts.splits.test.tolist()}
