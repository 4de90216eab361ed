"""What membership attacks read off a model, and thresholds that never see an evaluated record."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.base import Knowledge
from datasets.base import LabelledImages
from federation.payload import Parameters
from federation.task import Task


def losses(task: Task, model: Parameters, data: LabelledImages) -> Tensor:
    """The training loss (N,) of every record by itself; non-finite ones become the largest float."""
    found = task.losses(task.predict(model, data.images), data.labels)
    return torch.nan_to_num(found, nan=3e38, posinf=3e38)


def own_records(knowledge: Knowledge) -> LabelledImages | None:
    """The records that the attacking parties hold themselves: members whose membership they know."""
    held = list(knowledge.view.holdings.values())
    if not held:
        return None
    return LabelledImages(torch.cat([h.images for h in held]), torch.cat([h.labels for h in held]))


def best_threshold(member_scores: Tensor, other_scores: Tensor) -> float:
    """The threshold t with the best balanced accuracy of "score >= t is a member" on known records.

    Midway between neighbouring scores; among equals the middle one, so that it does not cling to one record.

    >>> best_threshold(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1.0]))
    2.0
    """
    values = torch.unique(torch.cat([member_scores, other_scores])).double()
    cuts = torch.cat([values[:1] - 1, (values[1:] + values[:-1]) / 2, values[-1:] + 1])
    tpr = (member_scores.double()[None] >= cuts[:, None]).double().mean(1)
    tnr = (other_scores.double()[None] < cuts[:, None]).double().mean(1)
    winners = cuts[(tpr + tnr) >= (tpr + tnr).max() - 1e-12]
    return float(winners[len(winners) // 2])
