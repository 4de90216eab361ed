"""Membership from the modified prediction entropy."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import MembershipAnswer
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack, ShadowPool, Signals
from leakboard.attacks.membership.building_blocks.signals import best_threshold, probabilities
from leakboard.federation.task import Task


class ModifiedEntropy(ShadowAttack):
    """A record is a member if the prediction is confident *and* right; the threshold per class comes from a shadow.

        Mentr(F(x), y) = -(1 - F(x)_y) log F(x)_y - sum_{i != y} F(x)_i log(1 - F(x)_i)

    It is 0 for a confident and right prediction. Unlike entropy, it is large for a confident and wrong one.
    score = tau_y - Mentr, with the decision at 0. tau_y is the best cut of class y between the records that a shadow
    model learned and the others. If the shadow lacks either kind for a class, the cut of all classes is used. For F
    under squared error see `signals.probabilities`.
    """

    name: ClassVar[str] = "modified-entropy"
    citation: ClassVar[str] = (
        "Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models, USENIX Security 2021"
    )

    shadows: int = Field(1, ge=1, le=256, description="how many shadow models determine the thresholds")

    @property
    def needed(self) -> int:
        """The number of shadow models."""
        return self.shadows

    def budget(self) -> dict[str, int]:
        """The number of shadow models."""
        return {"shadows": self.shadows}

    def work(self, problems: int) -> tuple[float, float]:
        """Every shadow is a training on half of the auxiliary images; a cached pool costs nothing."""
        return 0.0, 0.5 * self.shadows

    def judge(self, task: Task, pool: ShadowPool, target: Signals, seed: int) -> MembershipAnswer:
        """Get the thresholds from the shadows, then score the candidates on the target."""
        labels = pool.records.labels
        shadows = -modified_entropy(probabilities(task, pool.signals.final), labels)
        cuts = class_thresholds(pool, shadows, task.public.classes)
        asked = labels[pool.candidates]
        scores = -modified_entropy(probabilities(task, target.on(pool.candidates).final), asked) - cuts[asked]
        return MembershipAnswer(scores, scores >= 0, pool.flags, {"threshold": float(cuts.mean())})


def modified_entropy(p: Tensor, labels: Tensor) -> Tensor:
    """Mentr (..., N) of probabilities (..., N, classes) at labels (N,).

    >>> modified_entropy(torch.tensor([[0.5, 0.5]]), torch.tensor([0])).tolist()
    [0.6931471824645996]
    """
    tiny = torch.finfo(p.dtype).tiny
    at_label = labels.expand(p.shape[:-1])[..., None]
    right = p.gather(-1, at_label)
    others = p.scatter(-1, at_label, 0.0)  # its term is then 0 log 1
    wrong = others * torch.log1p(-others.clamp(max=1 - torch.finfo(p.dtype).eps))
    return -((1 - right) * right.clamp(min=tiny).log()).squeeze(-1) - wrong.sum(-1)


def class_thresholds(pool: ShadowPool, scores: Tensor, classes: int) -> Tensor:
    """The best cut (classes,) of every class on scores (N, A) of the shadows, over the records of their universe."""
    known, member = scores[:, pool.universe], pool.member[:, pool.universe]
    labels = pool.records.labels[pool.universe].expand_as(member)
    cuts = torch.full((classes,), best_threshold(known[member], known[~member]), dtype=torch.float64)
    for label in range(classes):
        inside, outside = known[member & (labels == label)], known[~member & (labels == label)]
        if len(inside) and len(outside):
            cuts[label] = best_threshold(inside, outside)
    return cuts
