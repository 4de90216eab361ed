"""How useful a stolen model is."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakboard.metrics.accuracy import accuracy
from leakboard.metrics.base import Aggregate, ExtractionMetric, ExtractionTruth, Score


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    """For each record, whether a model is right: the terms of `metrics.accuracy.accuracy`.

    h_i = [argmax_c logits_i,c = label_i]; if logits are equal, the first class counts; a logit that is not finite is
    wrong

    Shapes: logits (N, classes), labels int64 (N,); returns float64 (N,), 0 or 1.
    Definition: top-1 accuracy.

    >>> hits(torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])).tolist()
    [1.0, 1.0, 0.0]
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be (N, classes) and labels (N,); given: {tuple(logits.shape)} and {tuple(labels.shape)}."
        )
    return ((logits.argmax(dim=1) == labels) & torch.isfinite(logits).all(dim=1)).double()


class StolenAccuracy(ExtractionMetric):
    """Test accuracy of the stolen model; the details give that of the true model.

    Definition: `metrics.stolen_accuracy.hits`, the mean over the test set.
    """

    name: ClassVar[str] = "stolen_accuracy"
    title: ClassVar[str] = "accuracy of the stolen model"
    aggregate: ClassVar[Aggregate] = "share"
    tolerance: ClassVar[float] = 0.03
    citation: ClassVar[str] = "Jagielski et al., High Accuracy and High Fidelity Extraction (...), USENIX Security 2020"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: ExtractionTruth) -> Score:
        """The mean over the test set; None if there is none."""
        if len(truth.labels) == 0:
            return Score(None, reason="there are no test records")
        found = hits(truth.stolen_logits, truth.labels)
        details = {"true_model": accuracy(truth.true_logits, truth.labels)}
        return Score(float(found.mean()), tuple(found.tolist()), details=details)
