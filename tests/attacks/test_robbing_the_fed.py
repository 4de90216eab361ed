"""A server that imprints its first layer reads records out of any sum, and a client that looks would notice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.robbing_the_fed import RobbingTheFed
from leakboard.contract.small import small
from leakboard.contract.worlds import World, make_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.imprint import imprinted, imprinted_records, signs_of_imprint
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.task import task_of
from leakboard.metrics.psnr import psnr


def world_of(name: str, *, active: bool = True, hidden: int = 200, **parameters: object) -> World:
    plugin = registry.load("defense", name)
    assert issubclass(plugin, Defense)
    honest = small(plugin, **parameters)
    defense = honest.deviate() if active else honest
    assert defense is not None
    return make_world(defense, model_parameters={"hidden": [hidden], "bias": True}, rounds=2, targets=3)


def answer_of(world: World, size: int = 1) -> tuple[Tensor, ...]:
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    return RobbingTheFed().reconstruct(knowledge, ReconstructionTask("first", 0, 3, 1, None, (size,) * 3)).images


@pytest.mark.parametrize("name", ["fedsgd", "clip"])
def test_one_record_is_exact(name: str) -> None:
    world = world_of(name)
    truth = world.shards["client:0"].images[:3]
    found = psnr(torch.cat(answer_of(world)), truth)
    assert float(found.min()) > 40


def test_a_sum_over_clients_falls_apart_too() -> None:
    world = world_of("secagg")
    victims = world.shards["client:0"].images[:3]
    for images, truth in zip(answer_of(world, size=3), victims, strict=True):
        assert float(psnr(images, truth.expand_as(images)).max()) > 40


def test_noise_hides_the_records() -> None:
    world = world_of("ldp", epsilon=0.1)
    truth = world.shards["client:0"].images[:3]
    assert float(psnr(torch.cat(answer_of(world)), truth).max()) < 15


def test_an_honest_server_reads_nothing() -> None:
    with pytest.raises(Unsupported, match="fedsgd"):
        answer_of(world_of("fedsgd", active=False))


def test_two_records_in_a_bin_give_a_mix_whose_weights_sum_to_one() -> None:
    random = torch.Generator().manual_seed(0)
    x, pull = torch.rand(2, 5, generator=random), torch.tensor([0.3, 1.2])
    active = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])  # both fire in the first two of three rows
    weight, bias = (active * pull) @ x, (active * pull).sum(1)
    (mixed,) = imprinted_records(weight, bias, 2)
    shares = torch.linalg.lstsq(x.T, mixed[:, None]).solution[:, 0]
    assert float(shares.sum()) == pytest.approx(1, abs=1e-4)


def test_a_client_that_looks_would_notice() -> None:
    world = world_of("fedsgd", active=False)
    task = task_of(world.outcome.public)
    for honest in (task.initial(0), world.outcome.model):
        assert signs_of_imprint(task, honest) == []
    changed = imprinted(task, task.initial(0))
    assert changed is not None
    assert len(signs_of_imprint(task, changed)) == 3
    assert {n: v.shape for n, v in changed.items()} == {n: v.shape for n, v in task.initial(0).items()}


def test_other_networks_cannot_be_imprinted() -> None:
    for model, parameters in (("mlp", {"hidden": [8]}), ("convnet", {"width": 2, "bias": True})):
        world = make_world(FedSGD(), model=model, model_parameters=dict(parameters), rounds=1)
        task = task_of(world.outcome.public)
        assert imprinted(task, task.initial(0)) is None


@pytest.mark.parametrize("name", ["mp", "mp-cdp", "mp-dp+", "pile"])
def test_a_perturbed_model_is_not_sent_in_plain(name: str) -> None:
    plugin = registry.load("defense", name)
    assert issubclass(plugin, Defense)
    assert small(plugin).deviate() is None
