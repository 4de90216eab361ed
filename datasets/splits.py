"""The four disjoint parts of the protocol, and the division of the members among the clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import ImagePool

Ints = np.ndarray[Any, np.dtype[np.int64]]

#: shares of the training images, as whole numbers: members, non-members, auxiliary, test
SHARES = (2, 1, 2, 0)
#: without an official test set, a fifth is held out first: 4/5 of 2/5, 1/5, 2/5, and 1/5
SHARES_HELD_OUT = (8, 4, 8, 5)
#: below the lower bound numpy's Dirichlet draws are no longer finite
ALPHA_BOUNDS = (1e-3, 1e6)


@dataclass(frozen=True)
class Splits:
    """Indices into the pool, int64, each in an order drawn from the seed.

    `members`, `non_members`, `auxiliary` and `test` are disjoint and cover the pool. `shards`, one per client, are
    disjoint and cover the members.
    """

    members: Tensor
    non_members: Tensor
    auxiliary: Tensor
    test: Tensor
    shards: tuple[Tensor, ...]


def make_splits(
    pool: ImagePool,
    *,
    seed: int,
    clients: int,
    partition: Literal["iid", "dirichlet"] = "iid",
    alpha: float = 0.5,
) -> Splits:
    """Split a pool into the four parts, stratified by class, and the members into shards.

    The training images become members (40 %), non-members (20 %) and auxiliary (40 %). Without an official test set, 20
    % are held out as test first. Images of one group (patient) stay in one part; the shares are then approximate. The
    four parts depend only on the seed: the number of clients and the partition change only the shards.

    `partition="iid"` divides each class evenly. `"dirichlet"` divides each class among the clients
    by proportions drawn from Dir(alpha) (as Yurochkin et al. 2019; Hsu et al. 2019 draw each client's
    class proportions from the same distribution): the smaller `alpha`, the more the clients differ.
    """
    labels = pool.labels.numpy().astype(np.int64)
    train = np.flatnonzero(~pool.is_test.numpy())
    official = np.flatnonzero(pool.is_test.numpy())
    shares = SHARES if len(official) else SHARES_HELD_OUT
    random = np.random.default_rng(derive_seed(seed, "splits", "parts"))
    if pool.groups is None:
        assigned = _stratify(labels[train], shares, random)
    else:
        assigned = _stratify_groups(labels[train], pool.groups.numpy()[train], shares, random)
    parts = [random.permutation(train[assigned == part]) for part in range(4)]
    if len(official):
        parts[3] = random.permutation(official)
    for name, part in zip(("members", "non-members", "auxiliary", "test"), parts, strict=True):
        if not len(part):
            raise UserError(
                f"The data set is too small to split: no image is left for {name}; given: {len(labels)} images."
            )
    shards = _divide(parts[0], labels, seed, clients, partition, alpha)
    members, non_members, auxiliary, test = (torch.from_numpy(part) for part in parts)
    return Splits(members, non_members, auxiliary, test, tuple(torch.from_numpy(shard) for shard in shards))


def _stratify(labels: Ints, shares: tuple[int, ...], random: np.random.Generator) -> Ints:
    """The part (N,) of each image: every part is within one image of its share, and within two in every class."""
    shuffled = random.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    assigned = np.zeros(len(labels), dtype=np.int64)
    # assigned class after class without restarting the cycle, so that the rounding of small classes evens out
    assigned[by_class] = np.resize(_deal(shares), len(labels))
    return assigned


def _deal(shares: tuple[int, ...]) -> list[int]:
    """One period of the parts in turn, each as often as its share and as evenly spread as possible.

    >>> _deal((2, 1, 2, 0))
    [0, 2, 1, 0, 2]
    """
    total, dealt, turns = sum(shares), [0] * len(shares), []
    for turn in range(1, total + 1):
        lacking = [share * turn - have * total for share, have in zip(shares, dealt, strict=True)]
        turns.append(lacking.index(max(lacking)))
        dealt[turns[-1]] += 1
    return turns


def _stratify_groups(labels: Ints, groups: Ints, shares: tuple[int, ...], random: np.random.Generator) -> Ints:
    """The part (N,) of each image, the same for a whole group.

    Greedy, the largest groups first: each group goes to the part where it reduces Σ (have - want)² / want most, summed
    over parts and classes.
    """
    _, group_of = np.unique(groups, return_inverse=True)
    _, class_of = np.unique(labels, return_inverse=True)
    counts = np.zeros((group_of.max() + 1, class_of.max() + 1))
    np.add.at(counts, (group_of, class_of), 1)
    usable = np.flatnonzero(np.asarray(shares) > 0)
    if len(counts) < len(usable):
        raise UserError(
            f"The images must come from at least {len(usable)} groups to keep these apart; given: {len(counts)}."
        )
    want = np.outer(np.asarray(shares)[usable] / sum(shares), counts.sum(0))
    have = np.zeros_like(want)
    part_of = np.zeros(len(counts), dtype=np.int64)
    shuffled = random.permutation(len(counts))
    for group in shuffled[np.argsort(-counts[shuffled].sum(1), kind="stable")]:
        cost = ((have + counts[group] - want) ** 2 - (have - want) ** 2) / want
        part_of[group] = np.argmin(cost.sum(1))
        have[part_of[group]] += counts[group]
    _fill_empty(part_of, counts.sum(1), len(usable))
    return usable[part_of][group_of].astype(np.int64)


def _fill_empty(part_of: Ints, sizes: np.ndarray[Any, Any], parts: int) -> None:
    """Give every part without a group the smallest group of the part that has the most groups, in place."""
    for part in range(parts):
        if not np.any(part_of == part):
            richest = np.bincount(part_of, minlength=parts).argmax()
            candidates = np.flatnonzero(part_of == richest)
            part_of[candidates[sizes[candidates].argmin()]] = part


def _divide(members: Ints, labels: Ints, seed: int, clients: int, partition: str, alpha: float) -> list[Ints]:
    """The clients' shards: disjoint, covering all members, with at least one record each, each in random order."""
    if not 1 <= clients <= len(members):
        raise UserError(f"The number of clients must be 1 to {len(members)}, one record for each; given: {clients}.")
    low, high = ALPHA_BOUNDS
    if partition not in ("iid", "dirichlet"):
        raise UserError(f"The partition must be 'iid' or 'dirichlet'; given: '{partition}'.")
    if not (math.isfinite(alpha) and low <= alpha <= high):
        raise UserError(f"The Dirichlet partition's alpha must be {low:g} to {high:g}; given: {alpha:g}.")
    dirichlet = partition == "dirichlet"
    random = np.random.default_rng(
        derive_seed(seed, "splits", "shards", partition, float(alpha) if dirichlet else None, clients)
    )
    mixed = random.permutation(members)
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    if dirichlet:
        owner = _dirichlet_owners(labels[by_class], clients, alpha, random)
    else:
        owner = np.arange(len(by_class)) % clients  # one by one: sizes and classes differ by at most one
    return [random.permutation(by_class[owner == client]) for client in range(clients)]


def _dirichlet_owners(labels: Ints, clients: int, alpha: float, random: np.random.Generator) -> Ints:
    """The client (N,) of each record, for labels that are sorted and in random order within a class."""
    owner = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        ends = np.cumsum(random.dirichlet(np.full(clients, alpha)))[:-1]
        owner[mine] = np.searchsorted(ends * len(mine), np.arange(len(mine)) + 0.5, side="right")
    for client in range(clients):  # a client without records could not take part: the largest one gives it a record
        if not np.any(owner == client):
            largest = np.bincount(owner, minlength=clients).argmax()
            owner[random.choice(np.flatnonzero(owner == largest))] = client
    return owner
