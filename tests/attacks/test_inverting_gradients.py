"""Inverting Gradients against the prior, and the parts it is made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attacks.base import Knowledge, ReconstructionTask
from attacks.reconstruction._labels import recover_labels
from attacks.reconstruction._matching import Matcher, total_variation
from attacks.reconstruction.inverting_gradients import InvertingGradients
from attacks.reconstruction.prior import Prior
from defenses.base import Gradient
from defenses.fedavg import FedAvg
from federation.task import task_of
from metrics.psnr import psnr
from tests.contract.worlds import World, make_world


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(FedAvg(), model="convnet", rounds=1, targets=4, auxiliary=300)


def rebuilt(world: World, attack: InvertingGradients | Prior) -> Tensor:
    knowledge = Knowledge(world.view("server"), FedAvg(), world.auxiliary, 3)
    answer = attack.reconstruct(knowledge, ReconstructionTask("first", 0, 4, 1, None, (1,) * 4))
    return torch.cat(list(answer.images))


@pytest.mark.slow
def test_at_batch_one_it_is_clearly_above_the_prior_on_every_target(world: World) -> None:
    targets = world.shards["client:0"].images[:4]
    floor = psnr(rebuilt(world, Prior()), targets)
    reached = psnr(rebuilt(world, InvertingGradients(iterations=300)), targets)
    assert bool((reached > floor + 3).all()), (reached, floor)


def test_the_truth_costs_nothing_and_noise_costs_more(world: World) -> None:
    task = task_of(world.outcome.public)
    problems = ReconstructionTask("first", 0, 4, 1, None, (1,) * 4).problems(
        Knowledge(world.view("server"), FedAvg(), world.auxiliary, 3)
    )
    truth = world.shards["client:0"].select(torch.arange(4))
    matcher = Matcher(task, problems, truth.labels[:, None], 1, "cpu")
    assert matcher.shared
    assert float(matcher.costs(truth.images[:, None]).max()) < 1e-5
    assert float(matcher.costs(torch.rand(4, 1, 1, 32, 32)).min()) > 0.01


def test_problems_on_different_models_get_their_own_gradients(world: World) -> None:
    """As under a defense that draws a new perturbation for each probe: stacked models, the same costs."""
    task = task_of(world.outcome.public)
    problems = ReconstructionTask("first", 0, 4, 1, None, (1,) * 4).problems(
        Knowledge(world.view("server"), FedAvg(), world.auxiliary, 3)
    )
    other = {name: value * 1.5 for name, value in problems[1].model.items()}
    truth = world.shards["client:0"].select(torch.arange(4))
    moved, _ = task.gradient(other, truth.images[1:2], truth.labels[1:2])
    mixed = (
        problems[0],
        type(problems[1])(other, Gradient(moved, 1, 1), None),
        *problems[2:],
    )
    matcher = Matcher(task, mixed, truth.labels[:, None], 1, "cpu")
    assert not matcher.shared
    assert float(matcher.costs(truth.images[:, None]).max()) < 1e-5


def test_batch_norm_networks_are_attacked_too() -> None:
    world = make_world(FedAvg(), model="convnet", model_parameters={"width": 2, "norm": "batch"}, rounds=1, targets=2)
    knowledge = Knowledge(world.view("server"), FedAvg(), world.auxiliary, 3)
    problems = ReconstructionTask("first", 0, 2, 1, None, (1,) * 2).problems(knowledge)
    truth = world.shards["client:0"].select(torch.arange(2))
    matcher = Matcher(knowledge.task, problems, truth.labels[:, None], 1, "cpu")
    assert float(matcher.costs(truth.images[:, None]).detach().max()) < 1e-4


def test_a_zero_gradient_is_flagged(world: World) -> None:
    knowledge = Knowledge(world.view("server"), FedAvg(), world.auxiliary, 3)

    class Zeroed(ReconstructionTask):
        def problems(self, known: Knowledge) -> tuple:  # type: ignore[type-arg]
            return tuple(
                type(p)(p.model, Gradient({n: g * 0 for n, g in p.gradient.values.items()}, 1, 1), None)
                for p in super().problems(known)
            )

    answer = InvertingGradients(iterations=2).reconstruct(knowledge, Zeroed("first", 0, 4, 1, None, (1,) * 4))
    assert "gradient all zero" in answer.flags


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_labels_of_a_batch_are_recovered_from_an_untrained_network(world: World, loss: str) -> None:
    public = world.outcome.public.model_copy(
        update={"training": world.outcome.public.training.model_copy(update={"loss": loss})}
    )
    task = task_of(public)
    model = task.initial(1)
    single = [
        int(recover_labels(task, model, task.gradient(model, image[None], label[None])[0], 1)) == int(label)
        for image, label in zip(world.auxiliary.images[:50], world.auxiliary.labels[:50], strict=True)
    ]
    assert sum(single) == 50
    batch = world.auxiliary.select(torch.arange(8))
    found = recover_labels(task, model, task.gradient(model, batch.images, batch.labels)[0], 8)
    wrong = 8 - int((torch.bincount(found, minlength=10).minimum(torch.bincount(batch.labels, minlength=10))).sum())
    assert wrong <= 2


@pytest.mark.parametrize("bias", [False, True])
def test_one_label_is_recovered_exactly_also_from_a_trained_network(bias: bool) -> None:
    """Also where the label is not the most negative residual, and on records the network never saw."""
    world = make_world(FedAvg(), model_parameters={"hidden": [32], "bias": bias}, shard=60, rounds=80, batch_size=20)
    task = task_of(world.outcome.public)
    model = world.outcome.model
    data = world.unseen
    found = [
        int(recover_labels(task, model, task.gradient(model, image[None], label[None])[0], 1))
        for image, label in zip(data.images, data.labels, strict=True)
    ]
    assert found == data.labels.tolist()


def test_total_variation_is_that_of_scikit_images_definition_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 3.0]]).view(1, 1, 1, 2, 2)
    assert float(total_variation(x)) == pytest.approx((0 + 2) / 2 + (1 + 3) / 2)
