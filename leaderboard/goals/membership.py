"""Membership: which records were trained on, in the whole training or in the victim's batch of an observed round."""

from __future__ import annotations

from typing import Any, ClassVar

from leakboard.attacks.base import MembershipAnswer
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.goals.question import CellFacts
from leakboard.leaderboard.goals.questions.membership import MembershipQuestion, candidates
from leakboard.leaderboard.records.known import Listed
from leakboard.metrics.base import MembershipTruth


class Membership(MembershipQuestion, Goal):
    """Tell the records that were trained on from others."""

    name: ClassVar[str] = "membership"
    citation: ClassVar[str] = "Shokri et al., Membership Inference Attacks Against Machine Learning Models, S&P 2017"
    about: ClassVar[tuple[str, ...]] = ("training", "batch")
    position: ClassVar[int] = 1
    decides: ClassVar[bool] = True
    headlines: ClassVar[tuple[str, ...]] = ("auc",)
    listed: ClassVar[tuple[str | Listed, ...]] = (
        Listed(
            "about",
            "member of",
            "about",
            digits=2,
            hint="the whole training, or the victim's batch in the observed round",
        ),
        Listed(
            "share",
            "pool",
            "share_of_batch",
            digits=2,
            hint="share of the victim's batch that was among the candidates",
        ),
        "auc",
        "asr",
        "tpr@1%fpr",
        "tpr@0.1%fpr",
        "asr_best_threshold",
    )

    def truth(self, facts: CellFacts, answer: MembershipAnswer) -> MembershipTruth:
        """Scores and decisions beside the truth."""
        return MembershipTruth(answer.scores, answer.decisions, candidates(facts)[1])

    def items_of(self, facts: CellFacts, answer: MembershipAnswer) -> dict[str, Any]:
        """Truth, score and decision of every candidate."""
        indices, members = candidates(facts)
        return {
            "target_indices": indices.tolist(),
            "members": members.tolist(),
            "member_scores": answer.scores.double().tolist(),
            "decisions": answer.decisions.tolist(),
        }
