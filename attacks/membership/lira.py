"""The likelihood-ratio attack."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import MembershipAnswer
from leakboard.attacks.membership.building_blocks.calibration import threshold
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack, ShadowPool, Signals
from leakboard.attacks.membership.building_blocks.signals import confidence_logit
from leakboard.federation.task import Task

#: smallest standard deviation that is used; models that agree to the last bit would otherwise divide by zero
SMALLEST_SPREAD = 1e-6
Variance = Literal["global", "record"]


class Lira(ShadowAttack):
    """Is the target's confidence likelier under models that learned the record, or under those that did not?

    phi = log(p / (1 - p)) with the confidence p = exp(-loss) (`signals.confidence_logit`) is assumed to be normal over
    models. Online, with shadow models that learned the record (in) and others that did not (out):

        score = log N(phi; mu_in, sigma_in^2) - log N(phi; mu_out, sigma_out^2)

    Offline, with models that never learned the record, the test is one-sided: Pr[N(mu_out, sigma_out^2) <= phi]. The
    score is the argument z = (phi - mu_out) / sigma_out of that increasing function, which gives the same ranking and
    never saturates. (The reference code takes -log N(phi; mu_out, sigma_out^2) instead, which also calls unusually
    *high* losses members.) Each record has its own means. The standard deviation is shared by all records (`global`,
    for few models) or estimated per record. For the threshold see `calibration.threshold`.
    """

    name: ClassVar[str] = "lira"
    citation: ClassVar[str] = "Carlini et al., Membership Inference Attacks From First Principles, S&P 2022"

    mode: Literal["offline", "online"] = Field(
        "offline", description="online: shadows learn half of the candidates too"
    )
    models: int = Field(16, ge=4, le=256, multiple_of=2, description="how many shadow models")
    variance: Variance = Field("global", description="one variance for all records, or one per record")

    @property
    def needed(self) -> int:
        """The number of shadow models."""
        return self.models

    @property
    def online(self) -> bool:
        """Whether each shadow also learns half of the candidates."""
        return self.mode == "online"

    def budget(self) -> dict[str, int]:
        """The number of shadow models."""
        return {"shadows": self.models}

    def work(self, problems: int) -> tuple[float, float]:
        """Every shadow is a training on half of its universe; a cached pool costs nothing."""
        return 0.0, (0.5 if self.mode == "offline" else 1.25) * self.models

    def judge(self, task: Task, pool: ShadowPool, target: Signals, seed: int) -> MembershipAnswer:
        """Score candidates, own and auxiliary records in the same way; decide for the candidates."""
        labels = pool.records.labels
        seen = confidence_logit(task, target.final, labels)
        shadows = confidence_logit(task, pool.signals.final, labels)

        def rehearsed(index: int, rest: Tensor) -> Tensor:
            return self.score(shadows[index], shadows[rest], pool.member[rest])

        scores = self.score(seen, shadows, pool.member)
        cut = threshold(pool, scores, rehearsed)
        asked = scores[pool.candidates]
        return MembershipAnswer(asked, asked >= cut, pool.flags, {"threshold": cut, "models": float(len(pool))})

    def score(self, seen: Tensor, shadows: Tensor, member: Tensor) -> Tensor:
        """Scores (A,) from phi on the target (A,) and on N shadows (N, A); `member` (N, A) says which learned the
        record.

        NaN if no model provides evidence about the record (with `record`: fewer than two models).
        """
        if self.mode == "offline":
            mean, spread = law(shadows, ~member, self.variance)
            return (seen - mean) / spread
        return log_normal(seen, *law(shadows, member, self.variance)) - log_normal(
            seen, *law(shadows, ~member, self.variance)
        )


def law(shadows: Tensor, chosen: Tensor, variance: Variance) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (A,) of shadows (N, A) over the models that `chosen` (N, A) selects for each record.

    `record`: the unbiased estimate from the record's own models. `global`: pooled over records,
    sigma^2 = sum_a sum_i (phi_ia - mu_a)^2 / sum_a (n_a - 1). If no record has two models (a rehearsal with a single
    pair left) the standard deviation is unknown and set to 1.
    """
    count = chosen.sum(0)
    mean = torch.where(chosen, shadows, 0.0).sum(0) / count  # 0 / 0 = NaN: no model
    squares = torch.where(chosen, (shadows - mean).square(), 0.0).sum(0)
    if variance == "record":
        square = squares / (count - 1).clamp(min=0)
    else:
        free = (count - 1).clamp(min=0).sum()
        pooled = squares.sum() / free if free > 0 else squares.new_tensor(1.0)
        square = pooled.expand_as(mean)
    return mean, square.sqrt().clamp(min=SMALLEST_SPREAD)


def log_normal(value: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """The logarithm of the normal density.

    >>> round(float(log_normal(torch.tensor(0.0), torch.tensor(0.0), torch.tensor(1.0))), 4)
    -0.9189
    """
    return -0.5 * ((value - mean) / spread).square() - spread.log() - 0.5 * math.log(2 * math.pi)
