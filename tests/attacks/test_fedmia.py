"""FedMIA: the null is uniform for records that nobody has, members are found, and a hidden update refuses it."""

from __future__ import annotations

import pytest
import torch

from leakboard.attacks.base import Knowledge, MembershipTask
from leakboard.attacks.membership.building_blocks.client_statistics import against_others
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.fedmia import FedMia
from leakboard.contract.small import small
from leakboard.contract.worlds import World, make_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense
from leakboard.defenses.fedsgd import FedSGD
from leakboard.metrics.auc import auc


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(
        FedSGD(),
        model_parameters={"hidden": [64]},
        clients=6,
        shard=6,
        batch_size=6,
        rounds=1,
        unseen=120,
        auxiliary=100,
    )


def knowledge_of(world: World) -> Knowledge:
    return Knowledge(world.view("server"), world.defense, world.auxiliary, 1)


@pytest.mark.parametrize("others", [2, 5, 30])
def test_the_null_is_uniform_however_few_the_clients_are(others: int) -> None:
    random = torch.Generator().manual_seed(0)
    drawn = torch.randn(others + 1, 20_000, generator=random).double()
    found = against_others(drawn[0], drawn[1:]).sort().values
    distance = (found - torch.linspace(0, 1, len(found), dtype=torch.float64)).abs().max()
    # Kolmogorov-Smirnov at one in a million: 2.7 / sqrt(20,000); outliers that are dropped make 30 clients less exact
    assert float(distance) < (0.019 if others <= 10 else 0.03)


@pytest.mark.parametrize(("measure", "least"), [("cosine", 0.8), ("loss", 0.7), ("difference", 0.75)])
def test_it_finds_the_victims_records(world: World, measure: str, least: float) -> None:
    members = world.shards["client:0"]
    candidates = joined(members, world.unseen)
    truth = torch.arange(len(candidates)) < len(members)
    attack = FedMia.model_validate({"measure": measure})
    answer = attack.infer(knowledge_of(world), MembershipTask(candidates, round_index=0))
    assert auc(answer.scores, truth) > least
    assert float(answer.decisions[~truth].double().mean()) < 0.2


def test_grad_norm_is_minus_the_squared_norm_and_needs_no_null(world: World) -> None:
    candidates = joined(world.shards["client:0"], world.unseen)
    scores = (
        FedMia(measure="norm", null="none").infer(knowledge_of(world), MembershipTask(candidates, round_index=0)).scores
    )
    knowledge = knowledge_of(world)
    task, (model,) = knowledge.task, (r.model for r in knowledge.readings() if r.context.kind == "train")
    assert model is not None
    for index in (0, 3, 50):
        gradient = task.gradient(model, candidates.images[index][None], candidates.labels[index][None])[0]
        square = sum(float(v.double().square().sum()) for v in gradient.values())
        assert float(scores[index]) == pytest.approx(-square, rel=1e-4)
    with pytest.raises(ValueError, match="null: none"):
        FedMia(measure="norm")


def test_records_that_nobody_has_are_not_told_apart(world: World) -> None:
    truth = torch.arange(len(world.unseen)) < 60
    answer = FedMia().infer(knowledge_of(world), MembershipTask(world.unseen, round_index=0))
    assert abs(auc(answer.scores, truth) - 0.5) < 0.2  # four deviations of an AUC of 60 against 60
    assert 0.3 < float(answer.scores.mean()) < 0.7


def test_the_other_clients_records_are_not_the_victims(world: World) -> None:
    """The null control of the target: what another client trained on scores no higher than what nobody did."""
    candidates = joined(world.shards["client:3"], world.unseen)
    truth = torch.arange(len(candidates)) < 6
    answer = FedMia().infer(knowledge_of(world), MembershipTask(candidates, round_index=0))
    assert auc(answer.scores, truth) < 0.7


def test_secure_aggregation_removes_it() -> None:
    plugin = registry.load("defense", "secagg")
    assert issubclass(plugin, Defense)
    hidden = make_world(small(plugin), rounds=1)
    with pytest.raises(Unsupported, match="secagg"):
        FedMia().infer(knowledge_of(hidden), MembershipTask(hidden.unseen))


def test_only_the_null_needs_other_clients() -> None:
    pair = make_world(FedSGD(), clients=2, rounds=1)
    task = MembershipTask(pair.unseen, round_index=0)
    with pytest.raises(Unsupported, match="2 other clients"):
        FedMia().infer(knowledge_of(pair), task)
    assert len(FedMia(null="none").infer(knowledge_of(pair), task).scores) == len(pair.unseen)
