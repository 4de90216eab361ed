"""Test accuracy of the global model: what a defense costs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakboard.metrics.base import Metric, Score, TrainingTruth


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of records whose largest logit is that of their label.

    accuracy = (1/N) sum over i of [argmax_c logits_i,c = label_i]; if logits are equal, the first class counts

    A record with a logit that is not finite counts as wrong, so that a diverged model does not score by chance.

    Shapes: logits (N, classes), labels int64 (N,), N at least 1.
    Definition: top-1 accuracy.

    >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    """
    right = correct(logits, labels)
    return int(right.sum()) / len(right)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """For each record, whether `accuracy` counts it as right.

    Shapes: logits (N, classes), labels int64 (N,), N at least 1; returns bool (N,).
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"logits must be (N, classes) and labels (N,), N at least 1; given: {tuple(logits.shape)} "
            f"and {tuple(labels.shape)}."
        )
    return (logits.argmax(dim=1) == labels) & torch.isfinite(logits).all(dim=1)


class Accuracy(Metric):
    """Test accuracy of the final global model; larger is more useful (it measures utility, not harm).

    Definition: `metrics.accuracy.accuracy`.
    """

    name: ClassVar[str] = "accuracy"
    tolerance: ClassVar[float] = 0.03
    goal: ClassVar[str] = "training"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: TrainingTruth) -> Score:
        """Accuracy of these logits; None if there are no records."""
        labels = truth.labels
        if len(labels) == 0:
            return Score(None, reason="there are no test records")
        return Score(accuracy(truth.logits, labels), details={"records": float(len(labels))})
