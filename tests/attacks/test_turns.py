"""Every model of a pool as the target in turn."""

from __future__ import annotations

import pytest
import torch

from leakboard.attacks.membership.building_blocks.rotating_targets import first_models, turns
from leakboard.attacks.membership.building_blocks.shadows import ShadowPool, Signals
from leakboard.attacks.membership.lira import Lira
from leakboard.contract.worlds import make_world
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.task import task_of
from leakboard.metrics.auc import auc

MODELS, RECORDS, CLASSES = 6, 40, 10


def made_pool(gain: float) -> ShadowPool:
    """Outputs that are noise, and by `gain` nearer to the label where the model learned the record."""
    random = torch.Generator().manual_seed(0)
    halves = torch.stack([torch.randperm(RECORDS, generator=random) < RECORDS // 2 for _ in range(MODELS // 2)])
    member = torch.stack([halves, ~halves], dim=1).flatten(0, 1)
    labels = torch.arange(RECORDS) % CLASSES
    images = torch.arange(RECORDS).float().view(-1, 1, 1, 1)  # a record shows its number
    noise = 0.1 * torch.randn(MODELS, RECORDS, CLASSES, generator=random)
    target = torch.nn.functional.one_hot(labels, CLASSES).float()
    logits = noise + gain * member[..., None] * target
    everything = slice(0, RECORDS)
    signals = Signals({"final": logits}, {"final": logits.norm(dim=-1)})
    return ShadowPool(LabelledImages(images, labels), everything, slice(0, 0), slice(0, 0), True, member, signals)


TOLD = torch.arange(RECORDS) % 4 == 0


def numbers(records: LabelledImages) -> list[int]:
    return [int(value) for value in records.images.flatten()]


def test_each_turn_holds_the_others_in_an_order_of_its_own() -> None:
    pool = made_pool(1.0)
    found = list(turns(pool, TOLD))
    assert [turn.index for turn in found] == list(range(MODELS))
    for turn in found:
        shown = turn.pool.records.images.flatten().long()
        assert sorted(shown.tolist()) == list(range(RECORDS))
        others = [i for i in range(MODELS) if i // 2 != turn.index // 2]
        assert torch.equal(turn.pool.member, pool.member[others][:, shown])
        assert torch.equal(turn.pool.signals.final, pool.signals.final[others][:, shown])
        assert torch.equal(turn.pool.signals.norms["final"], pool.signals.norms["final"][others][:, shown])
        assert torch.equal(turn.target.final, pool.signals.final[turn.index][shown])
        member = pool.member[turn.index]
        asked = shown[turn.pool.candidates]
        assert not TOLD[asked].any()
        assert torch.equal(turn.truth, member[asked])
        assert member[shown[turn.pool.own]].all()
        assert not member[shown[turn.pool.auxiliary]].any()
        told = torch.tensor(numbers(turn.told.records))
        assert sorted(told.tolist()) == TOLD.nonzero().squeeze(1).tolist()
        assert torch.equal(turn.told.members, member[told])


def test_an_attack_finds_what_each_target_learned_and_nothing_where_there_is_nothing() -> None:
    task = task_of(make_world(FedSGD(), model_parameters={"hidden": [4]}, rounds=1).outcome.public)

    def areas(gain: float) -> list[float]:
        attack = Lira(mode="online", models=4)
        return [
            auc(attack.judge(task, turn.pool, turn.target, 0).scores, turn.truth)
            for turn in turns(made_pool(gain), TOLD)
        ]

    assert min(areas(1.0)) == 1
    # 30 records per turn, about 15 of each kind: the mean of six has a deviation of about 0.05 (0.5 +- 5 of them)
    assert abs(sum(areas(0.0)) / MODELS - 0.5) < 0.25


def test_the_first_models_only() -> None:
    pool = made_pool(1.0)
    few = first_models(pool, 2)
    assert len(few) == 2
    assert torch.equal(few.signals.final, pool.signals.final[:2])
    assert len(first_models(pool, 99)) == MODELS


def test_halves_that_are_not_complementary_are_refused() -> None:
    with pytest.raises(ValueError, match="complementary"):
        next(turns(first_models(made_pool(1.0), 3), TOLD))
