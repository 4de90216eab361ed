"""The Cocktail Party attack: edges are separated, Gaussian sources are not, and sums over clients come apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge, ReconstructionAnswer
from leakboard.attacks.reconstruction.closed_form.unmixing import cocktail, rotated, whitened
from leakboard.attacks.reconstruction.cocktail_party import CocktailParty
from leakboard.contract.worlds import World, make_world
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.metrics.psnr import psnr
from tests.attacks.test_analytic import GivenTask

#: that of digits
SHAPE = (1, 32, 32)


def likeness(found: Tensor, truth: Tensor) -> Tensor:
    """The largest |correlation| (B,) of each true source with any that was found."""
    return torch.corrcoef(torch.cat([found, truth]))[: len(found), len(found) :].abs().amax(0)


def pictures(random: torch.Generator, count: int) -> Tensor:
    """Flat images (count, 1024) in [0, 1] with few edges: three random boxes each. Digits are 8 x 8, too few values."""
    images = torch.zeros(count, *SHAPE[1:], dtype=torch.float64)
    for image in images:
        for _ in range(3):
            top, left, high, wide = torch.randint(2, 18, (4,), generator=random).tolist()
            image[top : top + high, left : left + wide] += float(torch.rand(1, generator=random)) / 4 + 0.08
    return images.flatten(1)


def test_whitened_rows_have_unit_covariance() -> None:
    random = torch.Generator().manual_seed(0)
    matrix = torch.randn(20, 4, generator=random).double() @ torch.randn(4, 300, generator=random).double()
    mixing, white = whitened(matrix, 4)
    assert torch.allclose(white @ white.T / 300, torch.eye(4, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(mixing @ white, matrix, atol=1e-9)


def test_images_with_edges_are_separated_and_gaussian_ones_are_not() -> None:
    random = torch.Generator().manual_seed(1)
    mixing = torch.randn(30, 8, generator=random).double()
    edges = pictures(random, 8)
    found = cocktail(mixing @ edges, 8, SHAPE, 200, random)
    assert float(likeness(found.rows, edges).min()) > 0.9
    noise = torch.randn(8, 1024, generator=random).double()
    found = cocktail(mixing @ noise, 8, SHAPE, 200, random)
    assert float(likeness(found.rows, noise).mean()) < 0.9


def test_a_rotation_stops_when_time_is_over() -> None:
    white = torch.randn(3, 100, generator=torch.Generator().manual_seed(0))
    assert rotated(white, 50, torch.Generator().manual_seed(0), lambda: True)[1] == 0


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(FedSGD(), model_parameters={"hidden": [96], "bias": True}, rounds=1, auxiliary=100, unseen=100)


def batch_of(count: int) -> LabelledImages:
    images = pictures(torch.Generator().manual_seed(4), count).float().view(-1, *SHAPE)
    return LabelledImages(images, torch.arange(count) % 10)


def attacked(world: World, batch: LabelledImages, noise: float = 0.0) -> ReconstructionAnswer:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
    model, random = knowledge.task.initial(1), torch.Generator().manual_seed(0)
    values = knowledge.task.gradient(model, batch.images, batch.labels)[0]
    values = {n: v + noise * float(v.abs().max()) * torch.randn(v.shape, generator=random) for n, v in values.items()}
    size = len(batch)
    problem = Inversion(model, Gradient(values, 4, size), None)  # as a sum over four clients: no labels are known
    return CocktailParty().reconstruct(knowledge, GivenTask("first", 0, 1, size, None, (size,), (problem,)))


def matched(found: Tensor, truth: Tensor) -> Tensor:
    """The PSNR (B,) of each record with the best image in the answer."""
    return torch.stack([psnr(found, record.expand_as(found)).max() for record in truth])


def test_a_sum_of_24_records_comes_apart(world: World) -> None:
    """`analytic` needs 2^23 draws for as many."""
    batch = batch_of(24)
    answer = attacked(world, batch)
    prior = matched(batch_of(200).images[24:].mean(0, keepdim=True), batch.images)
    found = matched(answer.images[0], batch.images)
    assert answer.images[0].shape == batch.images.shape
    assert float((found - prior).mean()) > 3
    assert float((found > prior + 3).double().mean()) > 0.5


def test_a_gradient_that_noise_drowns_gives_nothing(world: World) -> None:
    batch = batch_of(24)
    answer = attacked(world, batch, noise=1.0)
    prior = matched(batch_of(200).images[24:].mean(0, keepdim=True), batch.images)
    assert float((matched(answer.images[0], batch.images) - prior).mean()) < 0.5
    assert any("not told apart" in flag or "not consistent" in flag for flag in answer.flags)


def test_a_convolutional_first_layer_is_refused() -> None:
    other = make_world(FedSGD(), model="convnet", model_parameters={"width": 2}, rounds=1)
    with pytest.raises(Unsupported, match="fully connected"):
        attacked(other, other.unseen.select(torch.arange(4)))
