"""Balanced accuracy at the best threshold on the evaluated records: an upper limit, not an attack's success."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from leakboard.metrics.base import MembershipMetric, MembershipTruth, Score
from leakboard.metrics.building_blocks.roc import counts, roc, undefined


def best_threshold_asr(scores: Tensor, members: Tensor) -> float:
    """Largest balanced accuracy that any threshold reaches on the evaluated records.

    value = max over t of (TPR(t) + TNR(t)) / 2, where "score >= t" means member

    It is biased upwards and never called ASR, because the truth chooses the threshold. A useless score on 500 members
    and 500 non-members has 0.52 on average. It is never below 0.5, because one threshold calls all records members.

    Shapes: scores (N,), finite, higher means member; members bool (N,), both kinds present.
    Definition: the "balanced accuracy" of the LiRA plots (Carlini et al. 2022).

    >>> import torch
    >>> best_threshold_asr(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([True, False, True, False]))
    0.75
    """
    true, false = roc(scores, members)
    return float((1 + true / true[-1] - false / false[-1]).max() / 2)


class BestThresholdAsr(MembershipMetric):
    """Balanced accuracy at the best threshold on the evaluated records: biased upwards, never called ASR.

    Definition: `metrics.best_asr.best_threshold_asr`.
    """

    name: ClassVar[str] = "asr_best_threshold"
    title: ClassVar[str] = "best-threshold accuracy"
    hint: ClassVar[str] = "chosen on the evaluated set: biased up"
    citation: ClassVar[str] = "Carlini et al., Membership Inference Attacks From First Principles, IEEE S&P 2022"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.5, 1.0)

    def score(self, truth: MembershipTruth) -> Score:
        """The value; None if there is only one class or if scores are not finite."""
        reason = undefined(truth)
        value = None if reason else best_threshold_asr(truth.scores, truth.members)
        return Score(value, reason=reason, details=counts(truth))
