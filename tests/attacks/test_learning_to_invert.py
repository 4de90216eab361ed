"""Learning to Invert: its loss ignores the order, it learns through defenses, and noise alone teaches it nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from leakboard.attacks.base import STOPPED, Inversion, Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.learning_to_invert import MOST_VALUES, LearningToInvert, _Source
from leakboard.attacks.reconstruction.regression.network import Examples, trained, unordered_loss
from leakboard.attacks.reconstruction.regression.sketch import Sketch
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.settings import client_name
from leakboard.metrics.psnr import psnr
from tests.attacks.clock import LONG_AGO
from tests.attacks.test_ridge import defense, world_of
from tests.attacks.third_party import ClippedAndRounded, Reversed

ATTACK = LearningToInvert(samples=400, bins=64, units=64, epochs=15, learning_rate=3e-3, flip=False)


def gain(scheme: Defense) -> tuple[float, float]:
    """The mean gain in dB over the mean image on 4 records, and the share that the network explains."""
    world = world_of(scheme, targets=4)
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    answer = ATTACK.reconstruct(knowledge, ReconstructionTask("first", 0, 4, 1, None, (1,) * 4))
    truth = world.shards["client:0"].images[:4]
    prior = psnr(world.auxiliary.images.mean(0).expand_as(truth), truth)
    return float((psnr(torch.cat(answer.images), truth) - prior).mean()), answer.diagnostics["explained"]


def test_the_order_inside_a_batch_does_not_change_the_loss() -> None:
    random = torch.Generator().manual_seed(0)
    made, truth = torch.rand(5, 4, 9, generator=random), torch.rand(5, 4, 9, generator=random)
    shuffled = truth[:, torch.randperm(4, generator=random)]
    assert torch.allclose(unordered_loss(made, truth), unordered_loss(made, shuffled))
    assert float(unordered_loss(truth, shuffled)) == 0
    assert float(unordered_loss(made, truth)) < float((made - truth).square().mean())


def test_shuffled_pairs_teach_no_more_than_the_mean_image() -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.rand(300, 1, 1, 4, 4, generator=random)
    features = images.flatten(1) @ torch.randn(16, 24, generator=random)
    sketch = Sketch({"w": torch.zeros(24)}, 24, random)

    def explained(order: torch.Tensor) -> float:
        train = Examples(features[:200][order], images[:200])
        held_out = Examples(features[200:], images[200:])
        return trained(
            sketch, train, held_out, units=64, epochs=15, learning_rate=3e-3, random=torch.Generator().manual_seed(1)
        ).explained

    assert explained(torch.arange(200)) > 0.4
    assert explained(torch.randperm(200, generator=random)) < 0.05


def test_it_rebuilds_digits_without_a_defense_and_through_pruning() -> None:
    for name in ("fedsgd", "grad-prune"):
        better, explained = gain(defense(name))
        assert better > 1.5, name
        assert explained > 0.3


@pytest.mark.parametrize("scheme", [ClippedAndRounded(), Reversed()], ids=lambda scheme: str(scheme.name))
def test_it_learns_through_a_third_partys_defense(scheme: Defense) -> None:
    """Such a defense has `protect` and nothing else: no hook says what it does."""
    better, explained = gain(scheme)
    assert better > 2
    assert explained > 0.3


def test_it_learns_from_a_sum_over_clients() -> None:
    """Each answer is better on the records of its own sum than on those of other sums, under the best order of each."""
    world, sums = world_of(defense("secagg"), targets=4), range(4)
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    attack = ATTACK.model_copy(update={"samples": 2000})
    answer = attack.reconstruct(knowledge, ReconstructionTask("first", 0, 4, 1, None, (3,) * 4))
    truths = [torch.stack([world.shards[client_name(c)].images[i] for c in range(3)]) for i in sums]
    mean = world.auxiliary.images.mean(0)

    def better(images: torch.Tensor, truth: torch.Tensor) -> float:
        orders = itertools.permutations(range(3))
        found = max(float(psnr(images[list(order)], truth).mean()) for order in orders)
        return found - float(psnr(mean.expand_as(truth), truth).mean())

    gains = torch.tensor([[better(images, truth) for truth in truths] for images in answer.images])
    own, others = gains.diagonal().mean(), (gains.sum() - gains.trace()) / 12
    assert answer.diagnostics["explained"] > 0.15
    assert float(own) > 1, gains
    assert float(own - others) > 1, gains


def test_noise_alone_teaches_it_nothing() -> None:
    better, explained = gain(defense("ldp", epsilon=0.001))
    assert explained < 0.05
    assert better < 0.5


def test_a_batch_is_learned_as_a_whole() -> None:
    world = world_of(FedSGD())
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 1)
    batch, model = world.shards["client:0"].select(torch.arange(2)), knowledge.task.initial(1)
    gradient = Gradient(knowledge.task.gradient(model, batch.images, batch.labels)[0], 1, 2)
    inverter = ATTACK.inverter(knowledge, [Inversion(model, gradient, None)])
    assert inverter is not None
    assert inverter(gradient.values).shape == batch.images.shape
    assert inverter.explained > 0.02
    assert len(inverter.curve) == ATTACK.epochs


def test_more_samples_than_memory_are_refused() -> None:
    world = world_of(FedSGD())
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 1)
    most = MOST_VALUES // world.auxiliary.images[0].numel()
    task = ReconstructionTask("first", 0, 1, 1, None, (1,))
    with pytest.raises(Unsupported, match=r"at most 268,435,456; given: .*fewer `samples` help"):
        LearningToInvert(samples=most + 1).reconstruct(knowledge, task)


def test_without_a_defense_only_one_problem_is_imitated() -> None:
    world = world_of(FedSGD(), targets=4)
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 1)
    plain = _Source(knowledge, ReconstructionTask("first", 0, 4, 1, None, (1,) * 4).problems(knowledge))
    assert plain.plain is not None
    assert len(plain.imitated) == 1


def test_without_time_it_guesses_and_says_so() -> None:
    world = world_of(FedSGD())
    knowledge = replace(Knowledge(world.view("server"), FedSGD(), world.auxiliary, 1), deadline=LONG_AGO)
    answer = ATTACK.reconstruct(knowledge, ReconstructionTask("first", 0, 1, 1, None, (1,)))
    assert torch.allclose(answer.images[0][0], world.auxiliary.images.mean(0))
    assert any(flag.startswith(STOPPED) for flag in answer.flags)
