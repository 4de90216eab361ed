"""Area under the ROC curve of membership scores."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.metrics.base import MembershipMetric, MembershipTruth, Score
from leakboard.metrics.building_blocks.roc import counts, roc, undefined


def auc(scores: Tensor, members: Tensor) -> float:
    """Probability that a member scores higher than a non-member; ties count half.

    AUC = (sum of the members' mid-ranks - P (P + 1) / 2) / (P Q), with P members and Q non-members

    This is the Mann-Whitney statistic, and the area under the ROC curve on which tied scores move together.

    Shapes: scores (N,), finite, higher means member; members bool (N,), both kinds present.
    Citation: Hanley and McNeil 1982.

    >>> import torch
    >>> auc(torch.tensor([2.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, False, False]))
    0.875
    """
    true, false = roc(scores, members)
    # the area by trapezes in whole counts: exact in double, and equal to the mid-rank formula
    area = ((true[1:] + true[:-1]) * (false[1:] - false[:-1])).sum() / 2
    return float(area / (true[-1] * false[-1]))


class Auc(MembershipMetric):
    """Area under the ROC curve of the membership scores, ties counting half; 0.5 is a coin flip.

    Definition: `metrics.auc.auc`.
    """

    name: ClassVar[str] = "auc"
    title: ClassVar[str] = "AUC"
    tolerance: ClassVar[float] = 0.03
    citation: ClassVar[str] = "Hanley and McNeil, The Meaning and Use of the Area under a ROC Curve, Radiology 1982"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: MembershipTruth) -> Score:
        """AUC; None if there is only one class or if scores are not finite."""
        reason = undefined(truth)
        value = None if reason else auc(truth.scores, truth.members)
        return Score(value, reason=reason, details=counts(truth))
