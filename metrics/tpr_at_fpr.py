"""True positive rate at a low false positive rate: the records that an attack exposes with certainty."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.metrics.base import MembershipMetric, MembershipTruth, Score
from leakboard.metrics.building_blocks.roc import counts, roc, undefined


def tpr_at_fpr(scores: Tensor, members: Tensor, level: float) -> float:
    """Highest true positive rate among thresholds whose false positive rate is at most the level.

    TPR@level = max over t of TPR(t) with FPR(t) <= level, where "score >= t" means member

    Records with tied scores move together, and nothing is interpolated between thresholds. With fewer than
    1/level non-members no false positive is allowed; the plugins then return None.

    Shapes: scores (N,), finite, higher means member; members bool (N,), both kinds present; 0 <= level <= 1.
    Citation: Carlini et al. 2022.

    >>> import torch
    >>> tpr_at_fpr(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([True, False, True, False]), 0.5)
    1.0
    """
    true, false = roc(scores, members)
    # k/n correctly rounded equals the literal of the level where they are the same number, so <= is exact
    allowed = false / false[-1] <= level
    return float(true[allowed][-1] / true[-1])


class _TprAtFpr(MembershipMetric):
    """Base of the metrics for the single levels."""

    citation: ClassVar[str] = "Carlini et al., Membership Inference Attacks From First Principles, IEEE S&P 2022"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    level: ClassVar[float]

    def score(self, truth: MembershipTruth) -> Score:
        """TPR at the level; None with fewer than 1/level non-members, only one class, or scores that are not finite."""
        found, needed = counts(truth), round(1 / self.level)
        reason = undefined(truth)
        if not reason and found["nonmembers"] < needed:
            reason = f"{found['nonmembers']:.0f} non-members are too few: a rate of {self.level:.1%} needs {needed}"
        value = None if reason else tpr_at_fpr(truth.scores, truth.members, self.level)
        return Score(value, reason=reason, details=found)


class TprAt1(_TprAtFpr):
    """Highest true positive rate with at most 1 % false positives.

    Definition: `metrics.tpr_at_fpr.tpr_at_fpr` with level 0.01.
    """

    name: ClassVar[str] = "tpr@1%fpr"
    title: ClassVar[str] = "TPR at 1 % FPR"
    tolerance: ClassVar[float] = 0.1
    level: ClassVar[float] = 0.01


class TprAt01(_TprAtFpr):
    """Highest true positive rate with at most 0.1 % false positives.

    Definition: `metrics.tpr_at_fpr.tpr_at_fpr` with level 0.001.
    """

    name: ClassVar[str] = "tpr@0.1%fpr"
    title: ClassVar[str] = "TPR at 0.1 % FPR"
    tolerance: ClassVar[float] = 0.1
    level: ClassVar[float] = 0.001
