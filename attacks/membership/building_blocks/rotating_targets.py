"""Every model of a pool is the target in turn, with the others as its references.

With complementary halves each record is in half of the models. So N models give N targets with as many members as
non-members, at the cost of N trainings instead of N times N.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakboard.attacks.base import KnownMembership
from leakboard.attacks.membership.building_blocks.shadows import ShadowPool, Signals


@dataclass(frozen=True)
class Turn:
    """One model as the target: the pool of the others, the target's signals on its records, and the truth.

    `truth` (candidates,) is hidden from the attack. `told` are the records whose membership the attacker knows. In the
    pool the members among them are the attacker's own records, and the others are auxiliary images.
    """

    index: int
    pool: ShadowPool
    target: Signals
    truth: Tensor
    told: KnownMembership


def turns(pool: ShadowPool, told: Tensor) -> Iterator[Turn]:
    """One turn per model of a pool of whole pairs; `told` (A,) says which records the attacker knows about.

    The target's twin is not a reference: it learned exactly what the target did not, which would reveal everything.
    """
    if len(pool) % 2 or not torch.equal(pool.member[::2], ~pool.member[1::2]):
        raise ValueError("turns need models in pairs that learned complementary halves of all records")
    for index in range(len(pool)):
        member = pool.member[index]
        asked, inside, outside = (part.nonzero().squeeze(1) for part in (~told, told & member, told & ~member))
        order = torch.cat([asked, inside, outside])
        ends = len(asked), len(asked) + len(inside), len(order)
        rest = pool.without_pair(index)
        others = replace(
            pool,
            records=pool.records.select(order),
            candidates=slice(0, ends[0]),
            own=slice(ends[0], ends[1]),
            auxiliary=slice(ends[1], ends[2]),
            online=True,
            member=pool.member[rest][:, order],
            signals=pool.signals.of(rest).on(order),
        )
        known = KnownMembership(pool.records.select(order[ends[0] :]), member[order[ends[0] :]])
        yield Turn(index, others, pool.signals.of(index).on(order), member[asked], known)


def first_models(pool: ShadowPool, count: int) -> ShadowPool:
    """The pool with its first `count` models only."""
    chosen = torch.arange(min(count, len(pool)))
    return replace(pool, member=pool.member[chosen], signals=pool.signals.of(chosen))
