from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.datasets.base import ImagePool
from leakboard.datasets.splits import Splits, make_splits

Partition = Literal["iid", "dirichlet"]
SHARES = {"members": 0.4, "non_members": 0.2, "auxiliary": 0.4}


def pool_of(labels: list[int], tests: int = 0, groups: list[int] | None = None) -> ImagePool:
    """A pool of blank images; the last `tests` are the official test set."""
    count = len(labels)
    return ImagePool(
        torch.zeros((count, 1, 16, 16), dtype=torch.uint8),
        torch.tensor(labels, dtype=torch.int64),
        torch.arange(count) >= count - tests,
        tuple(str(i) for i in range(max(labels) + 1)),
        None if groups is None else torch.tensor(groups, dtype=torch.int64),
    )


def four(splits: Splits) -> list[Tensor]:
    return [splits.members, splits.non_members, splits.auxiliary, splits.test]


def same(a: Splits, b: Splits, shards: bool = True) -> bool:
    pairs = list(zip(four(a), four(b), strict=True))
    if shards:
        pairs += list(zip(a.shards, b.shards, strict=True))
    return all(torch.equal(x, y) for x, y in pairs)


@st.composite
def pools(draw: st.DrawFn) -> ImagePool:
    labels = draw(st.lists(st.integers(0, 4), min_size=12, max_size=120))
    tests = draw(st.sampled_from([0, 5]))
    grouped = draw(st.booleans())
    groups = draw(st.lists(st.integers(0, 30), min_size=len(labels), max_size=len(labels))) if grouped else None
    if groups is not None:
        groups[:4] = [100, 101, 102, 103]  # fewer than four groups cannot be kept apart
    return pool_of(labels, tests, groups)


@settings(deadline=None, max_examples=60)
@given(pool=pools(), seed=st.integers(0, 2**31), dirichlet=st.booleans(), clients=st.integers(1, 4))
def test_properties(pool: ImagePool, seed: int, dirichlet: bool, clients: int) -> None:
    # there cannot be more clients than members, and of large groups there may be a single one
    clients = min(clients, len(make_splits(pool, seed=seed, clients=1).members))
    partition: Partition = "dirichlet" if dirichlet else "iid"
    splits = make_splits(pool, seed=seed, clients=clients, partition=partition)
    # disjoint, cover everything, none empty
    together = torch.cat(four(splits))
    assert sorted(together.tolist()) == list(range(len(pool.labels)))
    assert all(len(part) for part in four(splits))
    # the official test set, if there is one, is the test part
    if pool.is_test.any():
        assert sorted(splits.test.tolist()) == torch.nonzero(pool.is_test).squeeze(1).tolist()
    # no group is in two parts (the official test set is as it is)
    if pool.groups is not None:
        parts = [p[~pool.is_test[p]] for p in four(splits)]
        groups = [set(pool.groups[p].tolist()) for p in parts]
        assert sum(len(g) for g in groups) == len(set.union(*groups))
    # shards divide the members
    assert len(splits.shards) == clients
    assert sorted(torch.cat(splits.shards).tolist()) == sorted(splits.members.tolist())
    assert all(len(shard) for shard in splits.shards)
    # the same seed gives the same
    assert same(splits, make_splits(pool, seed=seed, clients=clients, partition=partition))


@settings(deadline=None, max_examples=60)
@given(
    labels=st.lists(st.integers(0, 6), min_size=10, max_size=200),
    official=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_stratified(labels: list[int], official: bool, seed: int) -> None:
    pool = pool_of(labels + [0] * 3, tests=3) if official else pool_of(labels)
    splits = make_splits(pool, seed=seed, clients=1)
    shares = SHARES if official else {k: v * 0.8 for k, v in SHARES.items()} | {"test": 0.2}
    for name, share in shares.items():
        part = getattr(splits, name)
        assert abs(len(part) - share * len(labels)) < 1
        for label in set(labels):
            mine = int((pool.labels[part] == label).sum())
            assert abs(mine - share * labels.count(label)) < 2


def test_groups_are_stratified_where_they_can_be() -> None:
    # 50 patients of 4 to 8 images, every third one of class 1
    groups = [g for g in range(50) for _ in range(4 + g % 5)]
    pool = pool_of([int(g % 3 == 0) for g in groups], groups=groups)
    splits = make_splits(pool, seed=3, clients=1)
    share_of_one = pool.labels.float().mean().item()
    for part, share in zip(four(splits), (0.32, 0.16, 0.32, 0.2), strict=True):
        assert len(part) / len(groups) == pytest.approx(share, abs=0.03)
        assert pool.labels[part].float().mean().item() == pytest.approx(share_of_one, abs=0.06)


def test_one_giant_group_leaves_no_part_empty() -> None:
    groups = [0] * 97 + [1, 2, 3]
    splits = make_splits(pool_of([i % 2 for i in range(100)], groups=groups), seed=0, clients=1)
    assert sorted(len(part) for part in four(splits)) == [1, 1, 1, 97]


def test_parts_do_not_depend_on_clients_or_partition() -> None:
    pool = pool_of([i % 5 for i in range(200)])
    one = make_splits(pool, seed=7, clients=2)
    other = make_splits(pool, seed=7, clients=9, partition="dirichlet", alpha=0.1)
    assert same(one, other, shards=False)
    assert not same(one, make_splits(pool, seed=8, clients=2), shards=False)


def test_iid_shards_are_alike() -> None:
    pool = pool_of([i % 5 for i in range(1000)])
    splits = make_splits(pool, seed=0, clients=7)
    sizes = [len(shard) for shard in splits.shards]
    assert max(sizes) - min(sizes) <= 1
    counts = torch.stack([torch.bincount(pool.labels[shard], minlength=5) for shard in splits.shards])
    assert (counts.amax(0) - counts.amin(0)).max() <= 1


def test_shards_are_in_random_order() -> None:
    # targets are the first records of a shard: they must not all be of the first class
    pool = pool_of([i // 100 for i in range(1000)])
    partitions: list[Partition] = ["iid", "dirichlet"]
    for partition in partitions:
        splits = make_splits(pool, seed=0, clients=4, partition=partition, alpha=100.0)
        assert all(len(set(pool.labels[shard[:20]].tolist())) >= 5 for shard in splits.shards)


def test_small_alpha_makes_clients_unlike() -> None:
    pool = pool_of([i % 5 for i in range(2000)])

    def largest_share(alpha: float) -> float:
        shards = make_splits(pool, seed=1, clients=5, partition="dirichlet", alpha=alpha).shards
        return sum(float(torch.bincount(pool.labels[s]).max()) / len(s) for s in shards) / len(shards)

    assert largest_share(0.05) > 0.6
    assert largest_share(1000.0) < 0.25


@pytest.mark.parametrize("alpha", [1e-3, 1e6])
def test_every_client_has_a_record_at_the_extremes(alpha: float) -> None:
    pool = pool_of([i % 2 for i in range(100)])
    splits = make_splits(pool, seed=0, clients=32, partition="dirichlet", alpha=alpha)
    assert len(splits.members) == 32
    assert [len(shard) for shard in splits.shards] == [1] * 32


@pytest.mark.parametrize("clients", [0, -1, 33])
def test_impossible_number_of_clients(clients: int) -> None:
    with pytest.raises(UserError, match=rf"clients must be 1 to 32, one record for each; given: {clients}\."):
        make_splits(pool_of([i % 2 for i in range(100)]), seed=0, clients=clients)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_impossible_alpha(alpha: float) -> None:
    with pytest.raises(UserError, match=r"alpha must be 0\.001 to 1e"):
        make_splits(pool_of([0, 1] * 50), seed=0, clients=2, partition="dirichlet", alpha=alpha)


def test_unknown_partition() -> None:
    with pytest.raises(UserError, match="'iid' or 'dirichlet'; given: 'by-size'"):
        make_splits(pool_of([0, 1] * 50), seed=0, clients=2, partition="by-size")  # type: ignore[arg-type]


def test_too_few_groups_or_images() -> None:
    with pytest.raises(UserError, match="at least 4 groups to keep these apart; given: 2"):
        make_splits(pool_of([0, 1] * 10, groups=[0, 1] * 10), seed=0, clients=1)
    with pytest.raises(UserError, match="too small to split: no image is left for"):
        make_splits(pool_of([0, 1]), seed=0, clients=1)
