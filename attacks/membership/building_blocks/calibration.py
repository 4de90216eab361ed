"""The threshold between members and non-members, from records that are never evaluated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakboard.attacks.membership.building_blocks.shadows import ShadowPool
from leakboard.attacks.membership.building_blocks.signals import best_threshold

#: (index of the model that acts as the target, indices of the remaining models) -> scores (A,)
Rehearsed = Callable[[int, Tensor], Tensor]


def threshold(pool: ShadowPool, scores: Tensor, rehearsed: Rehearsed) -> float:
    """The threshold on scores (A,) of the pool's records; records that cannot be scored are NaN.

    1. If the attacker holds members itself: the best cut between them and the auxiliary images on the real target.
    2. Otherwise every shadow model acts as the target in turn, against the models outside its pair: the best cut
       between the records that it learned and the others. This needs at least 4 models; more are better.
    3. Otherwise the median of the auxiliary images.
    """
    own, others = _finite(scores[pool.own]), _finite(scores[pool.auxiliary])
    if len(own) and len(others):
        return best_threshold(own, others)
    played = [(j, rehearsed(j, rest)[pool.universe]) for j in range(len(pool)) if len(rest := pool.without_pair(j))]
    if played:
        members = torch.cat([found[pool.member[j][pool.universe]] for j, found in played])
        rest_of = torch.cat([found[~pool.member[j][pool.universe]] for j, found in played])
        members, rest_of = _finite(members), _finite(rest_of)
        if len(members) and len(rest_of):
            return best_threshold(members, rest_of)
    return float(others.median())


def _finite(scores: Tensor) -> Tensor:
    return scores[scores.isfinite()]
