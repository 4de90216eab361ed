"""Attack networks: balanced batches, standardised features, closed-form gradients, the variants of each attack."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.attacks.base import Knowledge, KnownMembership, MembershipTask
from leakboard.attacks.membership.building_blocks.network import _batches
from leakboard.attacks.membership.building_blocks.shadows import moments_of
from leakboard.attacks.membership.building_blocks.signals import output_errors, outputs_and_features
from leakboard.attacks.membership.known_members import KnownMembers
from leakboard.attacks.membership.nasr import Nasr, last_layer_gradients, projected
from leakboard.attacks.membership.shadow import Shadow
from leakboard.contract.worlds import World, make_world
from leakboard.core.errors import Unsupported
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.task import task_of

WORLD = make_world(FedSGD(), model_parameters={"hidden": [8]}, rounds=4)


def knowledge(world: World = WORLD, threat: str = "client", seed: int = 5) -> Knowledge:
    return Knowledge(world.view(threat), world.defense, world.auxiliary, seed)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_a_round_of_batches_uses_no_record_twice(count: int, size: int, seed: int) -> None:
    size = min(size, count)
    endless = _batches(torch.arange(100, 100 + count), size, torch.Generator().manual_seed(seed))
    first = torch.cat(list(itertools.islice(endless, count // size)))
    assert len(first) == count // size * size
    assert len(set(first.tolist())) == len(first)
    assert set(first.tolist()) <= set(range(100, 100 + count))
    assert len(next(endless)) == size  # and it goes on


def test_what_can_be_told_apart_is_told_apart_however_few_members_there_are() -> None:
    """1 member to 9 others, overlapping: an unbalanced network would call every record a non-member."""
    generator = torch.Generator().manual_seed(0)
    members = torch.arange(1000) % 10 == 0
    features = torch.randn(1000, 1, generator=generator) + 1.5 * members[:, None]
    scores, fit = KnownMembers(epochs=20).judged(features, members, torch.tensor([[-1.0], [0.6], [0.9], [3.0]]), 0)
    assert (scores >= 0).tolist() == [False, False, True, True]  # even odds: the line lies at 0.75
    assert fit > 0.7


def test_standardised_features_make_the_scale_meaningless_and_raw_ones_do_not() -> None:
    generator = torch.Generator().manual_seed(1)
    members = torch.arange(200) % 2 == 0
    features = torch.randn(200, 3, generator=generator) + members[:, None]
    asked = torch.randn(20, 3, generator=generator)
    scale, shift = torch.tensor([1e-3, 1.0, 1e3]), torch.tensor([5.0, -7.0, 1e4])
    moved = [features * scale + shift, asked * scale + shift]
    plain, _ = KnownMembers(epochs=3).judged(features, members, asked, 0)
    same, _ = KnownMembers(epochs=3).judged(moved[0], members, moved[1], 0)
    torch.testing.assert_close(plain, same, atol=2e-2, rtol=0)
    raw, _ = KnownMembers(epochs=3, standardise=False).judged(moved[0], members, moved[1], 0)
    assert (raw - plain).abs().max() > 0.1


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_closed_form_gradients_are_those_of_backward_passes(loss: str, model: str) -> None:
    public = WORLD.outcome.public
    update = {"training": public.training.model_copy(update={"loss": loss}), "model": model}
    parameters = public.model_parameters if model == "mlp" else {"width": 2}
    task = task_of(public.model_copy(update={**update, "model_parameters": parameters}))
    weights = task.initial(3)
    data = WORLD.unseen.select(torch.arange(4))
    logits, hidden = outputs_and_features(task, weights, data.images)
    found = last_layer_gradients(output_errors(task, logits, data.labels), hidden)
    last = task.parameter_names[-1]
    for i in range(4):
        expected, _ = task.gradient(weights, data.images[i : i + 1], data.labels[i : i + 1])
        torch.testing.assert_close(found[i], expected[last], atol=1e-6, rtol=1e-4)
    assert torch.equal(logits, task.predict(weights, data.images))


def test_a_projection_keeps_what_is_small_and_roughly_the_lengths_of_what_is_large() -> None:
    small = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert projected(small, 8, seed=1) is small
    large = torch.randn(50, 2000, generator=torch.Generator().manual_seed(0))
    ratio = projected(large, 400, seed=1).norm(dim=1) / large.norm(dim=1)
    assert ((ratio - 1).abs() < 0.25).all()  # 5 standard deviations of 1 / sqrt(2 * 400)


def told() -> MembershipTask:
    known = KnownMembership(WORLD.unseen.select(torch.arange(20)), torch.arange(20) % 2 == 0)
    return MembershipTask(WORLD.unseen.select(torch.arange(20, 40)), known)


def test_without_known_members_the_papers_attack_says_what_it_lacks() -> None:
    with pytest.raises(Unsupported, match="known_members"):
        KnownMembers().infer(knowledge(), MembershipTask(WORLD.unseen))


@pytest.mark.parametrize(
    ("features", "width"),
    [(("outputs",), 10), (("intermediate",), 8), (("loss", "correct"), 2), (("outputs", "intermediate", "label"), 28)],
)
def test_the_network_sees_the_features_that_were_chosen(features: tuple[str, ...], width: int) -> None:
    attack = KnownMembers.parse({"features": features, "epochs": 1}, "attack")
    known = knowledge()
    found = attack._features(known.task, moments_of(known)["final"], WORLD.unseen)
    assert found.shape == (40, width)
    answer = attack.infer(known, told())
    assert answer.flags == ("was told 10 members and 10 others",)
    assert len(answer.scores) == 20


def test_nasr_learns_from_known_members_or_from_shadows() -> None:
    attack = Nasr(epochs=1, shadows=1, projection=4)
    assert attack._gradients(knowledge(), WORLD.unseen).shape == (40, 3 * (10 + 5 + 10 * 4))  # first, last, final
    assert attack.infer(knowledge(), told()).flags == ("was told 10 members and 10 others",)
    answer = attack.infer(knowledge(), MembershipTask(WORLD.unseen))
    assert answer.diagnostics["moments"] == 3
    assert answer.flags == ()


@pytest.mark.parametrize(
    ("parameters", "width"),
    [
        ({}, 13),
        ({"outputs": "full"}, 13),
        ({"outputs": "top"}, 6),
        ({"outputs": "top", "top": 2, "label_features": False}, 2),
        ({"outputs": "full", "per_class": True, "shadows": 3}, 13),
    ],
)
def test_every_variant_of_the_shadow_attack_answers(parameters: dict[str, object], width: int) -> None:
    attack = Shadow.parse({"shadows": 1, "epochs": 1, **parameters}, "attack")
    logits, labels = torch.tensor([[3.0, 1.0, 2.0, *[0.0] * 7]]), torch.tensor([1])
    found = attack.features(task_of(WORLD.outcome.public), logits, labels)
    assert found.shape == (1, width)
    assert found[0, :2].tolist() == ([3.0, 1.0] if attack.outputs == "full" else [3.0, 2.0])
    assert len(attack.infer(knowledge(), MembershipTask(WORLD.unseen)).scores) == 40


def test_a_network_for_each_class_is_another_answer() -> None:
    task = MembershipTask(WORLD.unseen)
    single = Shadow(shadows=1, epochs=5).infer(knowledge(), task).scores
    by_class = Shadow(shadows=1, epochs=5, per_class=True).infer(knowledge(), task).scores
    assert not torch.equal(single, by_class)
