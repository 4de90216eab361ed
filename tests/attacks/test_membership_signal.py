"""Membership attacks find nothing where there is nothing, and something where a model overfits.

False-alarm rates: the null tests accept the central 99.9 % of the binomial law for the 20 seeds together
(false alarm 0.1 % an attack) and 99.99 % for each seed (0.2 % an attack over 20); seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch

from attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask
from attacks.membership._signals import best_threshold
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.shadow import Shadow
from datasets.base import LabelledImages
from defenses.fedavg import FedAvg
from leaderboard.statistics import binomial_band
from metrics.asr import asr
from metrics.auc import auc
from tests.contract.worlds import World, make_world

SEEDS = range(20)
ATTACKS = [LossThreshold(), Shadow(shadows=2, hidden=16)]


def joined(*parts: LabelledImages) -> LabelledImages:
    return LabelledImages(torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]))


def overfitted(seed: int) -> World:
    return make_world(
        FedAvg(),
        model_parameters={"hidden": [64]},
        clients=3,
        shard=60,
        rounds=400,
        batch_size=15,
        learning_rate=0.02,
        seed=seed,
        label_noise=0.3,
        auxiliary=240,
        unseen=200,
    )


def attacked(world: World, attack: MembershipAttack, candidates: LabelledImages) -> MembershipAnswer:
    return attack.infer(Knowledge(world.view("client"), FedAvg(), world.auxiliary, 9), MembershipTask(candidates))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_overfitted_model_gives_its_members_away(attack: MembershipAttack) -> None:
    world = overfitted(seed=0)
    members = joined(world.shards["client:0"], world.shards["client:2"])  # client 1 attacks
    truth = torch.arange(len(members) + len(world.unseen)) < len(members)
    answer = attacked(world, attack, joined(members, world.unseen))
    assert asr(answer.decisions, truth) >= 0.60
    assert auc(answer.scores, truth) >= 0.60


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_on_records_that_nobody_trained_on_the_attack_is_a_coin(attack: MembershipAttack) -> None:
    right = total = 0
    for seed in SEEDS:
        world = make_world(
            FedAvg(),
            model_parameters={"hidden": [32]},
            shard=40,
            rounds=40,
            batch_size=10,
            seed=seed,
            auxiliary=120,
            unseen=200,
        )
        truth = torch.arange(200) % 2 == 0
        answer = attacked(world, attack, world.unseen)
        correct = int((answer.decisions == truth).sum())
        band = binomial_band(200, false_alarm=1e-4)
        assert band.low <= asr(answer.decisions, truth) <= band.high
        right, total = right + correct, total + len(truth)
    band = binomial_band(total, false_alarm=1e-3)
    assert band.low <= right / total <= band.high


class _Leak(MembershipAttack):
    """Knows the truth: labels of members were marked. Only to test the orientation of the scores."""

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        scores = (task.candidates.labels == 9).double()
        return MembershipAnswer(scores, scores > 0.5)


def test_a_perfect_leak_scores_one_hundred_percent() -> None:
    world = make_world(FedAvg(), model_parameters={"hidden": [4]}, rounds=1)
    marked = LabelledImages(world.unseen.images, torch.tensor([9, 0] * 20))
    answer = attacked(world, _Leak(), marked)
    truth = marked.labels == 9
    assert asr(answer.decisions, truth) == 1
    assert auc(answer.scores, truth) == 1


def test_the_threshold_separates_known_records_as_well_as_can_be() -> None:
    members, others = torch.tensor([0.9, 0.8, 0.4]), torch.tensor([0.5, 0.2, 0.1])
    cut = best_threshold(members, others)
    assert 0.5 < cut < 0.8  # 2/3 and 3/3 right; no cut does better
    assert best_threshold(torch.ones(3), torch.ones(3)) != 1.0  # all tied: everybody on one side
