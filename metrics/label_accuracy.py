"""How many labels of the victim's records an attack recovered."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakboard.metrics.base import Aggregate, ReconstructionMetric, ReconstructionTruth, Score
from leakboard.metrics.building_blocks.images import mean_score

NO_LABELS = "the attack returned no labels"


def label_hits(recovered: Tensor, true: Tensor) -> Tensor:
    """For each record of a batch, whether the attack recovered its label; the order of the labels does not count.

    hits = sum over classes c of min(n_c, m_c), with n_c records of class c in the batch and m_c recovered labels c

    A gradient is a sum over the batch, so labels come without an order. Of the n_c records of a class, the first m_c
    count as hits. For one record this is [recovered = true]. `mean` of the result is the overlap of the two multisets.

    Shapes: both int64 (N,), one batch; returns float64 0/1 (N,).
    Citation: Zhao et al. 2020 (one record); Wainakh et al. 2022 (batches).

    >>> label_hits(torch.tensor([7, 3, 3]), torch.tensor([3, 7, 5])).tolist()
    [1.0, 1.0, 0.0]
    """
    if recovered.ndim != 1 or recovered.shape != true.shape:
        raise ValueError(
            f"there must be one label per record; given: {tuple(recovered.shape)} for {tuple(true.shape)}."
        )
    same = torch.tril(true[:, None] == true[None, :]).sum(
        1
    )  # its number among the batch's records of its class, from 1
    found = (recovered[None, :] == true[:, None]).sum(1)
    return (same <= found).double()


class LabelAccuracy(ReconstructionMetric):
    """Share of the victim's labels that the attack recovered; None where they were told, or not returned.

    Definition: `metrics.label_accuracy.label_hits`, batch by batch.
    """

    name: ClassVar[str] = "label_accuracy"
    title: ClassVar[str] = "labels"
    hint: ClassVar[str] = "share of the victim's labels that were recovered"
    aggregate: ClassVar[Aggregate] = "share"
    tolerance: ClassVar[float] = 0.15
    citation: ClassVar[str] = "Zhao et al., iDLG, arXiv 2001.02610, 2020; Wainakh et al., LLG, PoPETs 2022"
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def score(self, truth: ReconstructionTruth) -> Score:
        """Share of hits over all batches."""
        if truth.recovered_labels is None or truth.labels is None:
            return Score(None, reason=truth.no_labels or NO_LABELS)
        pairs = zip(truth.recovered_labels, truth.labels, strict=True)
        return mean_score(torch.cat([label_hits(recovered, true) for recovered, true in pairs]))
