"""Attack success rate of membership decisions."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakboard.metrics.base import MembershipMetric, MembershipTruth, Score
from leakboard.metrics.building_blocks.roc import check_members, counts, undefined


def rates(decisions: Tensor, members: Tensor) -> tuple[float, float]:
    """True positive and true negative rate of decisions.

    >>> rates(torch.tensor([True, False, False]), torch.tensor([True, True, False]))
    (0.5, 1.0)
    """
    check_members(decisions, members)
    if decisions.dtype != torch.bool:
        raise ValueError(f"decisions must be bool, a threshold is not chosen here; given: {decisions.dtype}.")
    return float(decisions[members].double().mean()), float((~decisions[~members]).double().mean())


def asr(decisions: Tensor, members: Tensor) -> float:
    """Balanced accuracy of hard membership decisions, as a fraction; 0.5 is a coin flip.

    ASR = (TPR + TNR) / 2

    The decisions come from the attack, which chose its threshold without the truth. The best threshold on the
    evaluated records is another metric (`asr_best_threshold`).

    Shapes: both bool (N,), with members and non-members.
    Citation: Yeom et al. 2018 (advantage = 2 ASR - 1).

    >>> asr(torch.tensor([True, False, False]), torch.tensor([True, True, False]))
    0.75
    """
    true_positive, true_negative = rates(decisions, members)
    return (true_positive + true_negative) / 2


class Asr(MembershipMetric):
    """Balanced accuracy of the membership decisions, with a threshold chosen without the truth.

    Definition: `metrics.asr.asr`.
    """

    name: ClassVar[str] = "asr"
    title: ClassVar[str] = "ASR"
    citation: ClassVar[str] = "Yeom et al., Privacy Risk in Machine Learning, CSF 2018"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: MembershipTruth) -> Score:
        """Balanced accuracy, with both rates and the counts in the details; None if there is only one class."""
        reason = undefined(truth, needs_scores=False)
        if reason:
            return Score(None, reason=reason, details=counts(truth))
        tpr, tnr = rates(truth.decisions, truth.members)
        return Score(asr(truth.decisions, truth.members), details={**counts(truth), "tpr": tpr, "tnr": tnr})
