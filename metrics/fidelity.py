"""How often a stolen model gives the same answer as the true one."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakboard.metrics.base import Aggregate, ExtractionMetric, ExtractionTruth, Score


def fidelity(stolen: Tensor, true: Tensor) -> Tensor:
    """For each record, whether two models predict the same class.

    f_i = [argmax_c stolen_i,c = argmax_c true_i,c]; if logits are equal, the first class counts

    A record with a logit that is not finite, in either model, counts as disagreement.

    Shapes: both (N, classes), the logits on the same records; returns float64 (N,), 0 or 1.
    Citation: Jagielski et al. 2020 (fidelity extraction).

    >>> fidelity(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([[9.0, 1.0], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    if stolen.ndim != 2 or stolen.shape != true.shape:
        raise ValueError(f"both logits must be (N, classes); given: {tuple(stolen.shape)} and {tuple(true.shape)}.")
    finite = torch.isfinite(stolen).all(dim=1) & torch.isfinite(true).all(dim=1)
    return ((stolen.argmax(dim=1) == true.argmax(dim=1)) & finite).double()


class Fidelity(ExtractionMetric):
    """Share of test images on which the stolen model agrees with the true one.

    Definition: `metrics.fidelity.fidelity`, the mean over the test set.
    """

    name: ClassVar[str] = "fidelity"
    hint: ClassVar[str] = "share of test images on which it agrees with the true model"
    aggregate: ClassVar[Aggregate] = "share"
    tolerance: ClassVar[float] = 0.03
    citation: ClassVar[str] = "Jagielski et al., High Accuracy and High Fidelity Extraction (...), USENIX Security 2020"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: ExtractionTruth) -> Score:
        """The mean over the test set; None if there is none."""
        if len(truth.labels) == 0:
            return Score(None, reason="there are no test records")
        agree = fidelity(truth.stolen_logits, truth.true_logits)
        return Score(float(agree.mean()), tuple(agree.tolist()))
