"""What the membership metrics share: checks, counts, and the ROC curve on which tied scores move together."""

from __future__ import annotations

import torch
from torch import Tensor

from leakboard.metrics.base import MembershipTruth


def check_members(values: Tensor, members: Tensor) -> None:
    """Refuse anything but one value per record, with both members and non-members."""
    if values.ndim != 1 or values.shape != members.shape or members.dtype != torch.bool:
        raise ValueError(
            f"there must be one value and one bool a record, (N,); given: {tuple(values.shape)} and "
            f"{tuple(members.shape)} of {members.dtype}."
        )
    if members.all() or not members.any():
        raise ValueError("there must be members and non-members; given: one class only.")


def check_scores(scores: Tensor, members: Tensor) -> None:
    """As `check_members`, and the scores must be finite, because NaN cannot be ordered."""
    check_members(scores, members)
    if not torch.isfinite(scores).all():
        raise ValueError("the scores must be finite; given: NaN or infinite ones among them.")


def roc(scores: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """True and false positives (counts, float64) of the rule "score >= t is a member", for all thresholds t.

    One entry per distinct score, from the largest down, after a first entry (0, 0) for a threshold above all scores.
    Records with tied scores pass a threshold together: no order among them is invented.

    >>> roc(torch.tensor([3.0, 1.0, 1.0]), torch.tensor([True, True, False]))[0].tolist()
    [0.0, 1.0, 2.0]
    """
    check_scores(scores, members)
    _, group = torch.unique(scores, return_inverse=True)  # ascending
    groups = int(group.max()) + 1
    zero = torch.zeros(1, dtype=torch.float64)
    counts = (torch.bincount(group[chosen], minlength=groups).flip(0) for chosen in (members, ~members))
    true, false = (torch.cat([zero, count.double().cpu().cumsum(0)]) for count in counts)
    return true, false


def undefined(truth: MembershipTruth, needs_scores: bool = True) -> str:
    """Why no membership metric is defined here (the reason of a `Score`); empty if it is defined."""
    positives = int(truth.members.sum())
    if positives in (0, len(truth.members)):
        return f"one class only: {positives} members among {len(truth.members)} records"
    bad = int((~torch.isfinite(truth.scores)).sum()) if needs_scores else 0
    return f"{bad} of {len(truth.scores)} scores are not finite" if bad else ""


def counts(truth: MembershipTruth) -> dict[str, float]:
    """The number of records of each kind, from which intervals are computed."""
    positives = int(truth.members.sum())
    return {"members": float(positives), "nonmembers": float(len(truth.members) - positives)}
