"""The quantile-regression attack: calibrated on records that nobody has, and better than one threshold for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge, MembershipTask
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.quantile import QuantileRegression
from leakboard.contract.worlds import World, make_world
from leakboard.defenses.fedsgd import FedSGD
from leakboard.metrics.auc import auc


@pytest.fixture(scope="module")
def world() -> World:
    """An overfitted network: 90 members, 120 rounds on all of them, a fifth of the labels wrong."""
    return make_world(
        FedSGD(),
        model_parameters={"hidden": [64]},
        shard=30,
        batch_size=30,
        rounds=120,
        learning_rate=0.05,
        auxiliary=500,
        unseen=300,
        label_noise=0.2,
    )


def knowledge_of(world: World) -> Knowledge:
    return Knowledge(world.view("client"), FedSGD(), world.auxiliary, 1)


def test_it_finds_members_of_an_overfitted_model(world: World) -> None:
    members = joined(world.shards["client:0"], world.shards["client:2"])
    candidates = joined(members, world.unseen)
    truth = torch.arange(len(candidates)) < len(members)
    answer = QuantileRegression().infer(knowledge_of(world), MembershipTask(candidates))
    assert auc(answer.scores, truth) > 0.6
    assert float(answer.decisions[truth].double().mean()) > 0.2
    assert float(answer.decisions[~truth].double().mean()) < 0.1


def test_a_difficult_class_gets_a_threshold_of_its_own() -> None:
    """phi depends on the class alone: the regression removes that, and a single threshold does not."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (600,), generator=random)
    inputs = torch.nn.functional.one_hot(labels, 2).float()
    phi = 4.0 * labels + torch.randn(600, generator=random) * (1 + labels)
    found = QuantileRegression(hidden=(8,), epochs=300)._fit(inputs[:400], phi[:400], inputs[400:], phi[400:], random)
    assert found is not None
    means, deviations = found(torch.eye(2)).T
    assert means.tolist() == pytest.approx([0, 4], abs=0.5)
    assert deviations.exp().tolist() == pytest.approx([1, 2], rel=0.25)


def test_the_threshold_comes_from_records_that_neither_trained_nor_chose_the_network(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(attack: object, x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor, random: object) -> Any:
        used = {tuple(row) for row in torch.cat([x, held_x]).tolist()}
        assert len(used) == len(x) + len(held_x) >= 0.8 * len(world.auxiliary)
        assert len(held_x) >= 0.1 * len(world.auxiliary)
        # a network that is far off, by 1000 deviations, on all records that it was given
        return lambda rows: torch.tensor([[-1000.0 if tuple(row) in used else 0.0, 0.0] for row in rows.tolist()])

    monkeypatch.setattr(QuantileRegression, "_fit", fit)
    answer = QuantileRegression().infer(knowledge_of(world), MembershipTask(world.unseen))
    assert answer.diagnostics["threshold"] < 10


def test_it_calls_few_of_those_members_that_nobody_has(world: World) -> None:
    answer = QuantileRegression().infer(knowledge_of(world), MembershipTask(world.unseen))
    assert float(answer.decisions.double().mean()) < 0.15
    truth = torch.arange(len(world.unseen)) < 150
    assert abs(auc(answer.scores, truth) - 0.5) < 0.14  # four deviations of an AUC of 150 against 150
