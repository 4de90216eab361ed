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


def world_of(name: str, *, active: bool = True, hidden: int = 64, **parameters: bool | float) -> World:
    plugin = registry.load("defense", name)
    assert issubclass(plugin, Defense)
    honest = small(plugin, **parameters)
    defense = honest.deviate() if active else honest
    assert defense is not None
    return make_world(defense, model_parameters={"hidden": [hidden], "bias": True}, rounds=2, targets=3)


def answer_of(world: World, size: int = 1) -> tuple[Tensor, ...]:
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 1)
    return RobbingTheFed().reconstruct(knowledge, ReconstructionTask("first", 0, 3, 1, None, (size,) * 3)).images


#: schemes in which the server reads a sum of three clients and no client's own message
SUMS = {"secagg", "tp-smc", "ddp", "ddp-mf", "hybridalpha", "skellam", "ddg"}
#: what a server that imprints its model gets from every defense of ours
EXACT = ("fedsgd", "fedavg", "clip", "secagg", "cdp", "mf", "soteria")  # cdp, mf: the server itself adds the noise
WITHOUT_NOISE = ("ldp", "tp-smc", "ddp", "ddp-mf", "hybridalpha", "skellam", "ddg")  # exact if their noise is off
COMPRESSED = ("grad-prune", "top-k", "sign")  # neighbouring rows no longer differ by a record
NOT_IN_PLAIN = ("mp", "mp-cdp", "mp-dp+", "pile")  # the model is perturbed: nothing can be imprinted
OTHERWISE = ("mp-dp", "mp-dp-naive", "mp-ldp")  # their server deviates in another way: see adversarial-r


def gains(name: str, **parameters: bool) -> tuple[Tensor, Tensor]:
    """PSNR (3,) of the best image for each of the victim's records, and of the mean image.

    The answer to a sum has an image per client, and the best of them counts: that is kind to the attack.
    """
    world = world_of(name, **parameters)
    truth, mean = world.shards["client:0"].images[:3], world.auxiliary.images.mean(0)
    answers = answer_of(world, 3 if name in SUMS else 1)
    found = [psnr(images, x.expand_as(images)).max() for images, x in zip(answers, truth, strict=True)]
    return torch.stack(found), psnr(mean.expand_as(truth), truth)


def test_every_defense_of_ours_has_an_expectation() -> None:
    said = [*EXACT, *WITHOUT_NOISE, *COMPRESSED, *NOT_IN_PLAIN, *OTHERWISE]
    assert sorted(said) == sorted(registry.entries("defense"))


@pytest.mark.parametrize("name", EXACT)
def test_records_are_exact_where_a_message_or_a_sum_is_read(name: str) -> None:
    found, _ = gains(name)
    assert float(found.min()) > 40


@pytest.mark.parametrize("name", WITHOUT_NOISE)
def test_noise_hides_the_records_and_nothing_else_does(name: str) -> None:
    """Fixed point and rounding cost some decibels, but a record is still far above the mean image."""
    found, prior = gains(name)
    assert bool((found < prior).all()), (found, prior)
    exposed, prior = gains(name, noise=False)
    assert bool((exposed > prior + 15).all()), (exposed, prior)
    assert float(exposed.median()) > 40


@pytest.mark.parametrize("name", COMPRESSED)
def test_compression_breaks_the_differences_of_rows(name: str) -> None:
    """Pruning may leave some pixels of a record; on the whole the answer is no better than the mean image."""
    found, prior = gains(name)
    assert float(found.max()) < 20
    assert float((found - prior).mean()) < 1


@pytest.mark.parametrize("name", NOT_IN_PLAIN)
def test_a_perturbed_model_is_not_sent_in_plain(name: str) -> None:
    plugin = registry.load("defense", name)
    assert issubclass(plugin, Defense)
    assert small(plugin).deviate() is None


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_server_that_deviates_in_another_way_imprints_nothing(name: str) -> None:
    with pytest.raises(Unsupported, match="sent no imprinted first layer"):
        answer_of(world_of(name, hidden=16))


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
