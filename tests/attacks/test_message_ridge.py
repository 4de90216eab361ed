"""The generic adaptive attack: it finds what a scheme sends beside its gradient, and nothing where there is nothing."""

from __future__ import annotations

import pytest
import torch

from leakboard.attacks.base import Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.attacks.reconstruction.message_ridge import MessageRidge, numbers
from leakboard.attacks.reconstruction.regression.sources import source_of
from leakboard.attacks.reconstruction.ridge import RidgeInversion
from leakboard.contract.worlds import World, make_world
from leakboard.defenses.base import Defense
from leakboard.metrics.psnr import psnr
from tests.attacks.test_ridge import defense, world_of
from tests.attacks.third_party import ClippedAndRounded, Reversed

TARGETS = 2


def gain(world: World, attack: RidgeInversion, *, told: bool = False) -> tuple[float, float]:
    """Mean PSNR over that of the mean image, and what the regression explained; `told`: the labels are known."""
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    labels = tuple(world.shards["client:0"].labels[:TARGETS, None]) if told else None
    answer = attack.reconstruct(knowledge, ReconstructionTask("first", 0, TARGETS, 1, labels, (1,) * TARGETS))
    truth = world.shards["client:0"].images[:TARGETS]
    found, guess = psnr(torch.cat(answer.images), truth), psnr(world.auxiliary.images.mean(0).expand_as(truth), truth)
    return float((found - guess).mean()), answer.diagnostics["explained"]


def test_it_learns_from_what_is_sent_without_noise_beside_a_noisy_gradient() -> None:
    world = make_world(defense("mp-dp"), model_parameters={"hidden": [64]}, rounds=1, auxiliary=80, targets=TARGETS)
    settings = {"samples": 80, "bins": 256, "flip": False}
    by_message, by_reading = (kind.model_validate(settings) for kind in (MessageRidge, RidgeInversion))
    more, explained = gain(world, by_message)
    less, read = gain(world, by_reading)
    assert explained > read + 0.1  # Psi and Phi carry no noise; the gradient does
    assert more > max(less, 0.0) + 3


@pytest.mark.parametrize("scheme", [ClippedAndRounded(), Reversed()], ids=lambda scheme: str(scheme.name))
def test_it_learns_through_a_third_partys_defense(scheme: Defense) -> None:
    """Such a defense has `protect` and nothing else: no hook says what it does."""
    world = make_world(scheme, model_parameters={"hidden": [64]}, rounds=1, auxiliary=80, targets=TARGETS)
    more, explained = gain(world, MessageRidge(samples=80, bins=256, flip=False))
    assert more > 4
    assert explained > 0.5


@pytest.mark.parametrize("scheme", [ClippedAndRounded(), Reversed()], ids=lambda scheme: str(scheme.name))
def test_with_the_labels_it_learns_through_it_on_a_convnet_too(scheme: Defense) -> None:
    more, _ = gain(world_of(scheme, targets=TARGETS), MessageRidge(samples=100, bins=256, flip=False), told=True)
    assert more > 2


def test_a_label_that_the_reading_gets_wrong_does_no_harm() -> None:
    world = world_of(Reversed(), targets=TARGETS)
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    problems = ReconstructionTask("first", 0, TARGETS, 1, None, (1,) * TARGETS).problems(knowledge)
    read = [int(labels_of(knowledge, problem)) for problem in problems]
    assert all(one != int(own) for one, own in zip(read, world.shards["client:0"].labels, strict=False))
    more, _ = gain(world, MessageRidge(samples=100, bins=256, flip=False))
    assert more > 2


def test_the_labels_are_those_that_it_used_and_not_those_of_the_noisy_gradient() -> None:
    world = make_world(defense("mp-dp"), model_parameters={"hidden": [64]}, rounds=1, auxiliary=80, targets=TARGETS)
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    attack = MessageRidge(samples=80, bins=256, flip=False)
    task = ReconstructionTask("first", 0, TARGETS, 1, None, (1,) * TARGETS)
    problems = task.problems(knowledge)
    used = [attack.solve(knowledge, problem, source_of(knowledge, problem)).labels for problem in problems]
    answer = attack.reconstruct(knowledge, task)
    assert answer.labels is not None
    assert [int(label) for label in answer.labels] == [int(label) for label in used if label is not None]
    assert torch.cat(list(answer.labels)).tolist() == world.shards["client:0"].labels[:TARGETS].tolist()


def test_noise_on_everything_teaches_it_nothing() -> None:
    world = make_world(
        defense("ldp", epsilon=0.001), model_parameters={"hidden": [8]}, rounds=1, auxiliary=80, targets=TARGETS
    )
    more, explained = gain(world, MessageRidge(samples=80, bins=64, flip=False))
    assert explained < 0.1
    assert more < 0.5


def test_where_the_view_holds_no_message_it_is_the_other_regression() -> None:
    world = make_world(defense("secagg"), model_parameters={"hidden": [8]}, rounds=1, auxiliary=60, targets=TARGETS)
    settings = {"samples": 60, "bins": 64, "flip": False}
    assert numbers({"a": b"sealed", "b": 3}) == {}
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    task = ReconstructionTask("first", 0, TARGETS, 1, None, (1,) * TARGETS)
    one, two = (kind.model_validate(settings).reconstruct(knowledge, task) for kind in (MessageRidge, RidgeInversion))
    assert torch.equal(torch.cat(one.images), torch.cat(two.images))
    assert one.diagnostics == two.diagnostics
