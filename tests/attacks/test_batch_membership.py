"""Batch membership: certain from Phi and from a clean gradient, a coin flip from a noisy one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipTask
from leakboard.attacks.membership.building_blocks.batch import BatchMembership, Mixture, Sketch
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.gradient_membership import GradientMembership
from leakboard.attacks.membership.phi_membership import PhiMembership
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.federation.settings import VICTIM, ObservedRounds, client_name
from leakboard.metrics.asr import asr
from leakboard.metrics.auc import auc
from tests.defenses.makings import Run, create, run
from tests.defenses.small import SHAPE, batches, small_run

WATCH = ObservedRounds(rounds=("first", "last"), targets=1)


def others(count: int, shape: tuple[int, int, int] = SHAPE, classes: int = 3, seed: int = 99) -> LabelledImages:
    generator = torch.Generator().manual_seed(seed)
    return LabelledImages(
        torch.rand(count, *shape, generator=generator), torch.randint(0, classes, (count,), generator=generator)
    )


def asked(
    attack: BatchMembership, made: Run, outsiders: LabelledImages, round_index: int | None = 0, threat: str = "server"
) -> tuple[MembershipAnswer, Tensor]:
    """The answer about the victim's batch and as many others, and the truth."""
    context = next(o for o in made.rounds() if o.context.round == (round_index or 0)).context
    batch = batches(made, context)[VICTIM]
    asked_about = joined(batch, outsiders)
    truth = torch.arange(len(asked_about)) < len(batch)
    order = torch.randperm(len(truth), generator=torch.Generator().manual_seed(3))
    task = MembershipTask(asked_about.select(order), round_index=round_index)
    auxiliary = others(60, made.public.shape, made.public.classes, seed=7)
    return attack.infer(Knowledge(made.view(threat), made.defense, auxiliary, 5), task), truth[order]


@pytest.mark.parametrize(
    ("attack", "defense", "settings"),
    [
        (PhiMembership(), "mp-dp", {}),
        (PhiMembership(), "mp-dp", {"clip": 0.05}),
        (PhiMembership(), "mp-dp", {"variant": "V1", "clip": None}),
        (PhiMembership(), "mp-dp-naive", {}),
        (GradientMembership(), "fedsgd", {}),
        (GradientMembership(), "mp-dp", {"noise": False, "clip": 0.05}),
    ],
)
@pytest.mark.parametrize("batch", [4, 24])
def test_members_are_told_apart_with_certainty(
    attack: BatchMembership, defense: str, settings: dict[str, Any], batch: int
) -> None:
    """Batches under and over the 16 inputs: by the span of the rows, by regression. Float32 clients."""
    made = small_run(
        create(defense, **settings), hidden=(40,), shard=24, batch_size=batch, precision="float32", observe=WATCH
    )
    answer, truth = asked(attack, made, others(batch))
    assert answer.flags == ("by row space" if batch < 16 else "by ridge regression",)
    assert auc(answer.scores, truth) == 1
    assert asr(answer.decisions, truth) == 1


@pytest.mark.parametrize("batch", [4, 24])
def test_the_noisy_gradient_of_mp_dp_says_nothing(batch: int) -> None:
    """48 members and 48 others in all; a coin leaves this band in 0.1 % of all keys (Mann-Whitney: sd 0.059)."""
    rounds = 48 // batch
    made = small_run(
        create("mp-dp", epsilon=1.0),
        hidden=(40,),
        shard=48,
        batch_size=batch,
        rounds=rounds,
        learning_rate=1e-9,
        observe=WATCH,
        record_all=True,
    )
    scores, truths = [], []
    for index in range(rounds):
        answer, truth = asked(GradientMembership(), made, others(batch, seed=index), index)
        # scores of different rounds are on different scales: ranks are not
        scores.append(answer.scores.argsort().argsort() / len(truth))
        truths.append(truth)
    assert abs(auc(torch.cat(scores), torch.cat(truths)) - 0.5) < 3.3 * 0.059


def test_auxiliary_records_take_up_the_part_of_members_that_nobody_asks_about() -> None:
    made = run(
        create("fedsgd"),
        model="convnet",
        model_parameters={"width": 2},
        shard=40,
        batch_size=40,
        rounds=1,
        clients=10,
        observe=WATCH,
    )
    context = made.rounds()[0].context
    batch, outsiders = batches(made, context)[VICTIM], made.shards["client:1"]
    few = joined(batch.select(torch.arange(10)), outsiders.select(torch.arange(10)))
    truth = torch.arange(20) < 10
    auxiliary = joined(*(made.shards[client_name(i)] for i in range(2, 10)))
    found = {
        count: GradientMembership(background=count).infer(
            Knowledge(made.view("server"), made.defense, auxiliary, 5), MembershipTask(few, round_index=0)
        )
        for count in (0, 320)
    }
    assert auc(found[320].scores, truth) > 0.1 + auc(found[0].scores, truth)


def test_a_question_about_no_single_batch_is_answered_from_all_observed_ones() -> None:
    made = small_run(create("fedsgd"), hidden=(40,), shard=8, rounds=2, observe=WATCH)
    answer, truth = asked(GradientMembership(), made, others(4), None)
    assert auc(answer.scores, truth) == 1


def test_a_view_without_gradients_is_refused() -> None:
    watched, unwatched = (small_run(create("fedsgd"), observe=w, record_all=False) for w in (WATCH, None))
    for made, threat, index in ((watched, "client", 0), (unwatched, "server", None)):
        known = Knowledge(made.view(threat), made.defense, others(20), 5)
        with pytest.raises(Unsupported, match="holds no mean"):
            GradientMembership().infer(known, MembershipTask(others(4), round_index=index))


def test_without_phi_the_attack_says_so() -> None:
    with pytest.raises(Unsupported, match="sends no Phi"):
        asked(PhiMembership(), small_run(create("fedsgd"), observe=WATCH), others(4))
    with pytest.raises(Unsupported, match="without noise"):
        asked(PhiMembership(), small_run(create("mp-dp+", honest=2), observe=WATCH), others(4))
    with pytest.raises(Unsupported, match="without noise"):
        asked(PhiMembership(), small_run(create("mp-dp"), observe=WATCH), others(4), threat="client")


def test_a_sketch_is_linear_and_keeps_lengths_on_average() -> None:
    sketch = Sketch(5000, 500)
    values = torch.randn(40, 5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(sketch(values).sum(0), sketch(values.sum(0, keepdim=True))[0])
    ratio = sketch(values).square().sum(1) / values.square().sum(1)
    assert float(ratio.mean()) == pytest.approx(1, abs=0.05)  # sd of the mean: sqrt(2 / 500 / 40) = 0.01


# --- a pool that holds a part of the batch ----------------------------------------------------------

#: members among the candidates, of a batch of 64, and others; the AUC of a coin has this standard deviation
PART, OUTSIDERS = 16, 64
COIN = ((PART + OUTSIDERS + 1) / (12 * PART * OUTSIDERS)) ** 0.5


@pytest.fixture(scope="module")
def large() -> Run:
    """A batch of 64 through a convolution, at a seed that no suite uses."""
    return run(
        create("mp-dp"),
        model="convnet",
        model_parameters={"width": 8},
        shard=64,
        batch_size=64,
        clients=5,
        rounds=1,
        seed=11,
        observe=WATCH,
    )


def of_a_part(made: Run, asked_about: LabelledImages, *, noise: bool = False) -> float:
    """The AUC of phi-membership for these records (the first `PART`) against those of another client."""
    candidates = joined(asked_about.select(torch.arange(PART)), made.shards["client:1"].select(torch.arange(OUTSIDERS)))
    auxiliary = joined(made.shards["client:3"], made.shards["client:4"])
    attack = _Drawn() if noise else PhiMembership()
    knowledge = Knowledge(made.view("server"), made.defense, auxiliary, 5)
    answer = attack.infer(knowledge, MembershipTask(candidates, round_index=0))
    return auc(answer.scores, torch.arange(len(candidates)) < PART)


class _Drawn(PhiMembership):
    """Phi replaced by noise of the same length, layer by layer."""

    def mixtures(self, knowledge: Knowledge, round_index: int) -> dict[str, Mixture]:
        random = torch.Generator().manual_seed(0)
        found = {}
        for owner, mixture in super().mixtures(knowledge, round_index).items():
            drawn = {n: torch.randn(v.shape, generator=random).to(v) for n, v in mixture.mean.values.items()}
            values = {n: d * mixture.mean.values[n].norm() / d.norm() for n, d in drawn.items()}
            found[owner] = replace(mixture, mean=replace(mixture.mean, values=values))
        return found


def test_a_quarter_of_the_batch_is_told_from_others(large: Run) -> None:
    """A coin passes in 0.1 % of all seeds."""
    batch = batches(large, large.rounds()[0].context)[VICTIM]
    assert of_a_part(large, batch) > 0.5 + 3.1 * COIN


def test_without_a_member_in_the_pool_the_score_is_a_coin_s(large: Run) -> None:
    """The null control: records of another client; leaves the band in 0.1 % of all seeds."""
    assert abs(of_a_part(large, large.shards["client:2"]) - 0.5) < 3.3 * COIN


def test_with_noise_in_place_of_phi_the_score_is_a_coin_s(large: Run) -> None:
    """The null control: leaves the band in 0.1 % of all seeds."""
    batch = batches(large, large.rounds()[0].context)[VICTIM]
    assert abs(of_a_part(large, batch, noise=True) - 0.5) < 3.3 * COIN
