"""Sized inversion: the size of the gradient keeps the contrast, and is left out where a defense changes it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.matching.descent import Descent
from leakboard.attacks.reconstruction.sized_inversion import NOT_USED, SizedInversion
from leakboard.contract.worlds import World, make_world
from leakboard.defenses.base import Defense
from leakboard.defenses.clip import Clip
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.ldp import Ldp
from leakboard.metrics.psnr import psnr
from tests.attacks.nulls import ShuffledTask

TASK = ReconstructionTask("first", 0, 2, 1, None, (1, 1))


def known(defense: Defense, world: World) -> Knowledge:
    return Knowledge(world.view("server"), defense, world.auxiliary, 3)


def answered(defense: Defense, attack: SizedInversion) -> ReconstructionAnswer:
    world = make_world(defense, model="convnet", model_parameters={"width": 4}, rounds=1)
    return attack.reconstruct(known(defense, world), TASK)


def test_the_size_of_the_gradient_counts_and_that_of_the_truth_costs_nothing() -> None:
    world = make_world(FedSGD(), model="convnet", model_parameters={"width": 4}, rounds=1)
    knowledge, attack = known(FedSGD(), world), SizedInversion(size=1.0)
    truth = world.shards["client:0"].select(torch.arange(2))
    problems = TASK.problems(knowledge)
    pale = 0.5 + 0.5 * (truth.images - 0.5)
    costs = []
    for size in (1.0, 0.0):
        matcher = attack.model_copy(update={"size": size}).matcher(knowledge, problems, truth.labels[:, None])
        costs.append([matcher.slopes(images[:, None])[0] for images in (truth.images, pale)])
    (true, paler), (_, without) = costs
    assert float(true.max()) < 1e-5
    assert bool((paler > 1.2 * without).all())


def test_it_says_where_the_size_was_not_used() -> None:
    short = SizedInversion(iterations=1)
    assert NOT_USED not in answered(FedSGD(), short).flags
    clip = Clip(clip=0.01)
    assert NOT_USED in answered(clip, short).flags
    assert NOT_USED not in answered(clip, SizedInversion(iterations=1, mimic=True)).flags
    assert NOT_USED in answered(Ldp(), short).flags


def test_the_size_of_an_update_of_local_steps_is_not_used() -> None:
    """It is that of a path, not of a gradient."""
    world = make_world(FedSGD(), model="convnet", model_parameters={"width": 4}, rounds=1)
    knowledge = known(FedSGD(), world)
    problems = TASK.problems(knowledge)
    assert SizedInversion().size_weight(knowledge, problems) > 0
    steps = {"local_steps": 2, "local_batches": 1, "local_learning_rate": 0.05}
    public = knowledge.public
    told = public.model_copy(update={"training": public.training.model_copy(update=steps)})
    local = replace(knowledge, view=replace(knowledge.view, public=told))
    assert SizedInversion().size_weight(local, problems) == 0


def test_it_rebuilds_one_record_and_nothing_from_an_empty_gradient() -> None:
    """Far above the mean image without a defense; below it where the gradient holds nothing of the record."""
    world = make_world(FedSGD(), model="convnet", model_parameters={"width": 16}, rounds=1, auxiliary=100)
    truth = world.shards["client:0"].images[:2]
    prior = psnr(world.auxiliary.images.mean(0).expand_as(truth), truth)
    attack = SizedInversion(iterations=200)
    found = attack.reconstruct(known(FedSGD(), world), TASK)
    assert bool((psnr(torch.cat(found.images), truth) > prior + 10).all())
    assert not any(flag.startswith("not converged") for flag in found.flags)
    empty = attack.reconstruct(known(FedSGD(), world), ShuffledTask(**vars(TASK)))
    assert bool((psnr(torch.cat(empty.images), truth) < prior).all())
    assert any(flag.startswith("not converged") for flag in empty.flags)


class _Flat:
    """A cost that is 0 everywhere and notes the images."""

    def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(images)), torch.zeros_like(images)


def test_a_falling_total_variation_keeps_the_best_of_its_last_weight() -> None:
    world = make_world(FedSGD(), rounds=1)
    start = torch.rand(2, 1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for fall, weight in ((1.0, 1.0), (0.5, 0.125)):
        best = Descent(16, 0.1, 1.0, fall=fall)(known(FedSGD(), world), _Flat(), start)
        rough = sum(best.images.diff(dim=axis).abs().flatten(1).mean(1) for axis in (-2, -1))
        assert torch.allclose(best.objective, weight * torch.as_tensor(rough), atol=1e-6)
