"""Membership attacks find nothing where there is nothing, something where a model overfits, all where it memorises.

False-alarm rates of the null tests, for each attack, by the laws of a coin and of the Mann-Whitney statistic: ASR and
AUC over all 20 seeds together 0.1 % each, in any single seed 0.2 % each (1e-4 per seed). Seeds are fixed.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy import stats

from leakboard.attacks.base import Knowledge, KnownMembership, MembershipAnswer, MembershipAttack, MembershipTask
from leakboard.attacks.membership.building_blocks import shadows as _shadows
from leakboard.attacks.membership.building_blocks.signals import best_threshold, joined
from leakboard.attacks.membership.known_members import KnownMembers
from leakboard.attacks.membership.lira import Lira
from leakboard.attacks.membership.loss_threshold import LossThreshold
from leakboard.attacks.membership.modified_entropy import ModifiedEntropy
from leakboard.attacks.membership.nasr import Nasr
from leakboard.attacks.membership.rmia import Rmia
from leakboard.attacks.membership.shadow import Shadow
from leakboard.contract.worlds import World, make_world
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.fedsgd import FedSGD
from leakboard.metrics.asr import asr
from leakboard.metrics.auc import auc
from tests.coins import binomial_band

SEEDS = range(20)
#: by name: the attack, and whether it is told half of the answers
ATTACKS: dict[str, tuple[MembershipAttack, bool]] = {
    "loss-threshold": (LossThreshold(), False),
    "modified-entropy": (ModifiedEntropy(shadows=2), False),
    "shadow": (Shadow(shadows=2, hidden=(16,), epochs=30), False),
    "shadow-per-class": (Shadow(shadows=2, hidden=(16,), epochs=60, outputs="top", per_class=True), False),
    "rmia-1": (Rmia(references=1), False),
    "rmia-2": (Rmia(references=2), False),
    "rmia-online": (Rmia(references=4, mode="online"), False),
    "lira": (Lira(models=4), False),
    "lira-record": (Lira(models=4, variance="record"), False),
    "lira-online": (Lira(models=4, mode="online"), False),
    "nasr": (Nasr(shadows=2, hidden=(32,), epochs=30), False),
    "nasr-known": (Nasr(hidden=(32,), epochs=50), True),
    "known-members": (KnownMembers(features=("loss", "correct"), epochs=50), True),
    "known-members-raw": (KnownMembers(features=("outputs", "loss"), epochs=50, standardise=False), True),
}
each_attack = pytest.mark.parametrize("name", ATTACKS)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shadows")


@pytest.fixture(autouse=True)
def _shared_pools(kept: Path, monkeypatch: pytest.MonkeyPatch, shadow_folder: Path) -> None:
    """All attacks of this file share their shadow models, as the cells of a run do."""
    monkeypatch.setattr(_shadows, "FOLDER", kept)


@cache
def overfitted(seed: int) -> World:
    return make_world(
        FedSGD(),
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


@cache
def memorised() -> World:
    """Labels mean almost nothing, and the network has learned all of them: a perfect leak."""
    return make_world(
        FedSGD(),
        model_parameters={"hidden": [256]},
        clients=3,
        shard=30,
        rounds=300,
        batch_size=15,
        learning_rate=0.02,
        seed=0,
        label_noise=0.9,
        auxiliary=180,
        unseen=120,
    )


@cache
def unrelated(seed: int) -> World:
    return make_world(
        FedSGD(),
        model_parameters={"hidden": [32]},
        shard=40,
        rounds=40,
        batch_size=10,
        seed=seed,
        auxiliary=120,
        unseen=300,
    )


def attacked(world: World, attack: MembershipAttack, task: MembershipTask, threat: str = "client") -> MembershipAnswer:
    return attack.infer(Knowledge(world.view(threat), FedSGD(), world.auxiliary, 9), task)


def question(world: World, told: bool) -> tuple[MembershipTask, torch.Tensor]:
    """Members of clients 0 and 2 (client 1 attacks) and as many as there are others, shuffled; half may be told."""
    members = joined(world.shards["client:0"], world.shards["client:2"])
    records = joined(members, world.unseen)
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(1))
    truth = order < len(members)
    half = len(order) // 2 if told else 0
    known = KnownMembership(records.select(order[:half]), truth[:half]) if told else None
    return MembershipTask(records.select(order[half:]), known), truth[half:]


@each_attack
def test_an_overfitted_model_gives_its_members_away(name: str) -> None:
    attack, told = ATTACKS[name]
    task, truth = question(overfitted(seed=0), told)
    answer = attacked(overfitted(seed=0), attack, task)
    assert asr(answer.decisions, truth) >= 0.60
    assert auc(answer.scores, truth) >= 0.65


@pytest.mark.parametrize("name", ["loss-threshold", "rmia-2", "lira", "lira-online", "shadow", "nasr"])
def test_a_server_that_holds_no_record_finds_a_threshold_too(name: str) -> None:
    attack, told = ATTACKS[name]
    task, truth = question(overfitted(seed=0), told)
    answer = attacked(overfitted(seed=0), attack, task, "server")
    assert asr(answer.decisions, truth) >= 0.60
    assert auc(answer.scores, truth) >= 0.65


def test_the_papers_network_on_raw_outputs_is_the_weak_one() -> None:
    """A coin's success from it alone shows nothing: two reference models find much more in the same model."""
    task, truth = question(overfitted(seed=0), told=True)
    weak = attacked(overfitted(seed=0), KnownMembers(features=("outputs",), standardise=False), task)
    strong = attacked(overfitted(seed=0), Rmia(references=2), task)
    assert auc(weak.scores, truth) < 0.70
    assert auc(strong.scores, truth) > 0.75


@each_attack
def test_where_all_is_memorised_high_scores_mean_members(name: str) -> None:
    attack, told = ATTACKS[name]
    task, truth = question(memorised(), told)
    answer = attacked(memorised(), attack, task)
    assert auc(answer.scores, truth) >= 0.95
    assert asr(answer.decisions, truth) >= 0.80
    if name in ("loss-threshold", "lira", "known-members"):
        assert auc(answer.scores, truth) == 1


@each_attack
def test_on_records_that_nobody_trained_on_the_attack_is_a_coin(name: str) -> None:
    attack, told = ATTACKS[name]
    count, right, areas = 200, 0, 0.0
    deviation = math.sqrt((count + 1) / (12 * (count / 2) ** 2))  # of the Mann-Whitney AUC of two halves
    for seed in SEEDS:
        world = unrelated(seed)
        truth = torch.arange(len(world.unseen)) % 2 == 0
        known = KnownMembership(world.unseen.select(torch.arange(count, 300)), truth[count:]) if told else None
        answer = attacked(world, attack, MembershipTask(world.unseen.select(torch.arange(count)), known))
        band = binomial_band(count, false_alarm=1e-4)
        assert band.low <= asr(answer.decisions, truth[:count]) <= band.high
        area = auc(answer.scores, truth[:count])
        assert abs(area - 0.5) <= float(stats.norm.isf(0.5e-4)) * deviation
        right, areas = right + int((answer.decisions == truth[:count]).sum()), areas + area
    band = binomial_band(count * len(SEEDS), false_alarm=1e-3)
    assert band.low <= right / (count * len(SEEDS)) <= band.high
    mean_deviation = deviation / math.sqrt(len(SEEDS))
    assert abs(areas / len(SEEDS) - 0.5) <= float(stats.norm.isf(0.5e-3)) * mean_deviation


class _Leak(MembershipAttack):
    """Knows the truth: labels of members were marked. Only to test the orientation of the scores."""

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        scores = (task.candidates.labels == 9).double()
        return MembershipAnswer(scores, scores > 0.5)


def test_a_perfect_leak_scores_one_hundred_percent() -> None:
    world = make_world(FedSGD(), model_parameters={"hidden": [4]}, rounds=1)
    marked = LabelledImages(world.unseen.images, torch.tensor([9, 0] * 20))
    answer = attacked(world, _Leak(), MembershipTask(marked))
    truth = marked.labels == 9
    assert asr(answer.decisions, truth) == 1
    assert auc(answer.scores, truth) == 1


def test_the_threshold_separates_known_records_as_well_as_can_be() -> None:
    members, others = torch.tensor([0.9, 0.8, 0.4]), torch.tensor([0.5, 0.2, 0.1])
    cut = best_threshold(members, others)
    assert 0.5 < cut < 0.8  # 2/3 and 3/3 right; no cut does better
    assert best_threshold(torch.ones(3), torch.ones(3)) != 1.0  # all tied: everybody on one side
