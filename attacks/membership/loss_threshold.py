"""Membership from the loss only."""

from __future__ import annotations

from typing import ClassVar

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask, final_model
from leakboard.attacks.membership.building_blocks.signals import best_threshold, losses, own_records
from leakboard.core.errors import Unsupported


class LossThreshold(MembershipAttack):
    """A record is a member if the final model's loss on it is small.

    score(x, y) = -loss(model(x), y). The threshold comes from records that are not evaluated. If the attacker
    holds its own shard, the threshold is the one that best separates the shard (members) from the auxiliary images
    (non-members). Otherwise it is the median score of the auxiliary images.
    """

    name: ClassVar[str] = "loss-threshold"
    citation: ClassVar[str] = "Yeom et al., Privacy Risk in Machine Learning, CSF 2018"

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Score by the negative loss, decide by the threshold."""
        if not len(knowledge.auxiliary):
            raise Unsupported("its threshold comes from auxiliary records; given: none")
        model = final_model(knowledge)
        scores = -losses(knowledge.task, model, task.candidates)
        others = -losses(knowledge.task, model, knowledge.auxiliary)
        own = own_records(knowledge)
        threshold = (
            float(others.median()) if own is None else best_threshold(-losses(knowledge.task, model, own), others)
        )
        return MembershipAnswer(scores, scores >= threshold, diagnostics={"threshold": threshold})
