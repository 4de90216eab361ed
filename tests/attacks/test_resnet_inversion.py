"""The attack on ResNets: its derivative is right, it improves on the regression, and it keeps that where it must."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.matching.grouped import Network
from leakboard.attacks.reconstruction.regression.learner import Moments
from leakboard.attacks.reconstruction.regression.sources import KnownResidual, source_of
from leakboard.attacks.reconstruction.regression.standardised import GaussianImages, Standardised
from leakboard.attacks.reconstruction.resnet_inversion import ResNetInversion
from leakboard.contract.worlds import World, make_world
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.metrics.psnr import psnr
from tests.attacks.nulls import shuffled


@pytest.fixture(scope="module")
def world() -> World:
    """A ResNet8 on digits."""
    return make_world(FedSGD(), model="resnet8", model_parameters={"width": 8}, rounds=1, auxiliary=300, targets=3)


def problem_of(world: World, image: int = 0) -> tuple[Knowledge, Inversion, Tensor]:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 1)
    truth = world.shards["client:0"].select(torch.tensor([image]))
    model = knowledge.task.initial(3)
    gradient = Gradient(knowledge.task.gradient(model, truth.images, truth.labels)[0], 1, 1)
    return knowledge, Inversion(model, gradient, None), truth.images


def test_a_bent_relu_leaves_gradients_as_they_are_and_changes_their_derivative(world: World) -> None:
    knowledge, problem, _ = problem_of(world)
    images = world.auxiliary.images[:2][:, None]
    found = []
    for bend in (0.0, 0.5):
        candidates = images.clone().requires_grad_()
        gradients = Network(knowledge.task, problem.model, 2, 1, bend=bend).slopes(candidates, lambda out: out.sum())
        total = torch.stack([g.square().sum() for g in gradients]).sum()
        found.append(([g.detach() for g in gradients], torch.autograd.grad(total, candidates)[0]))
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))
    assert not torch.allclose(found[0][1], found[1][1])


def test_the_bent_derivative_is_that_of_a_smoothed_network() -> None:
    """With f'' a triangle of half-width w, f' is its integral: for a network of one hidden layer both are compared."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 6, dtype=torch.float64), 0.7
    from leakboard.attacks.reconstruction.matching.layers import _BentRelu

    layer = _BentRelu(w / float(x.std()), 1)
    layer.forward(x)
    slope, change = torch.randn_like(x), torch.randn_like(x)
    layer.backward(slope, True)
    layer.tangent({}, change)
    bump = (1 - x.abs() / w).clamp(min=0) / w
    assert torch.allclose(layer.cotangent({}, torch.zeros_like(x)), bump * slope * change)
    grid = torch.linspace(-w, w, 100_001, dtype=torch.float64)
    assert float(torch.trapezoid((1 - grid.abs() / w).clamp(min=0) / w, grid)) == pytest.approx(1)


def test_the_truth_has_no_misfit_and_the_mean_image_has_one(world: World) -> None:
    knowledge, problem, truth = problem_of(world)
    source, moments = source_of(knowledge, problem), Moments()
    assert isinstance(source, KnownResidual)
    moments.add(source.gradients(world.auxiliary.images[:, None]))
    misfit = Standardised.of(source, problem.gradient.values, moments.deviations())
    assert misfit.misfit(truth[0]) < 1e-6
    assert misfit.misfit(world.auxiliary.images.mean(0)) > 0.1


def test_the_image_prior_is_a_change_of_coordinates(world: World) -> None:
    prior = GaussianImages(world.auxiliary.images)
    image = world.auxiliary.images[0]
    assert torch.allclose(prior.image(prior.latent(image)), image, atol=1e-4)
    latents = torch.stack([prior.latent(x) for x in world.auxiliary.images])
    assert torch.allclose(latents.mean(0), torch.zeros(latents.shape[1]), atol=1e-3)
    assert latents[:, -20:].std(0).sub(1).abs().max() < 0.05  # the main directions have deviation 1


def test_it_improves_on_its_regression(world: World) -> None:
    ridge = ResNetInversion(samples=300, flip=False, rounds=0, iterations=0)
    settings = {"rounds": 1, "local": 200, "iterations": 60, "matchings": 1, "learning_rate": 0.3, "accept": 10.0}
    whole = ResNetInversion.model_validate({"samples": 300, "flip": False, **settings})
    gains, over = [], []
    for image in range(3):
        knowledge, problem, truth = problem_of(world, image)
        source = source_of(knowledge, problem)
        first, second = (attack.solve(knowledge, problem, source)[0] for attack in (ridge, whole))
        assert first is not None
        assert second is not None
        mean = world.auxiliary.images.mean(0, keepdim=True)
        gains.append(float(psnr(second, truth) - psnr(first, truth)))
        over.append(float(psnr(second, truth) - psnr(mean, truth)))
    assert sum(gains) / 3 > 2
    assert sum(over) / 3 > 8


def test_a_match_that_misses_is_not_used(world: World) -> None:
    knowledge, problem, _ = problem_of(world)
    source = source_of(knowledge, problem)
    settings = {"samples": 100, "bins": 64, "flip": False, "rounds": 1, "local": 32}
    refused = ResNetInversion.model_validate({**settings, "iterations": 2, "accept": 0.0})
    without = ResNetInversion.model_validate({**settings, "iterations": 0})
    one, two = (attack.solve(knowledge, problem, source)[0] for attack in (refused, without))
    assert one is not None
    assert two is not None
    assert torch.equal(one, two)


@pytest.mark.parametrize(("enough", "expected"), [(1e9, 1), (0.0, 3)])
def test_it_matches_again_only_where_the_misfit_is_large(world: World, enough: float, expected: int) -> None:
    knowledge, problem, _ = problem_of(world)
    source = source_of(knowledge, problem)
    attack = ResNetInversion(
        samples=100, bins=64, flip=False, rounds=1, local=32, iterations=5, accept=1e9, enough=enough
    )
    stages = list(attack.stages(knowledge, problem, source))
    assert [stage.name for stage in stages] == ["ridge", "local", *["matched"] * expected]
    moments = Moments()
    moments.add(source.gradients(world.auxiliary.images[:100, None], 0))
    assert isinstance(source, KnownResidual)
    misfit = Standardised.of(source, problem.gradient.values, moments.deviations())
    found = [misfit.misfit(stage.images[0]) for stage in stages[2:]]
    assert found == sorted(found, reverse=True)  # the best one is kept
    solved = attack.solve(knowledge, problem, source)
    assert solved.images is not None
    assert torch.equal(solved.images, stages[-1].images)


@pytest.mark.parametrize("told", [False, True], ids=["own-source", "true-residual"])
def test_a_gradient_without_the_image_gives_no_image(world: World, told: bool) -> None:
    """The null control, scored against the record itself; the true gradient in the same call does much better.

    A shuffled gradient is that of no record, so its own source offers no matching. With the true residual the matching
    runs as well, and what it finds counts whatever its misfit is.
    """
    attack = ResNetInversion(samples=300, flip=False, rounds=1, local=100, iterations=20, matchings=1, accept=1e9)
    mean = world.auxiliary.images.mean(0, keepdim=True)
    true, null = [], []
    for image in range(2):
        knowledge, problem, truth = problem_of(world, image)
        empty = shuffled(problem, image)
        source = source_of(knowledge, problem)
        prior = psnr(mean, truth)
        found = attack.solve(knowledge, problem, source)[0]
        nothing = attack.solve(knowledge, empty, source if told else source_of(knowledge, empty))[0]
        assert found is not None
        assert nothing is not None
        true.append(float(psnr(found, truth) - prior))
        null.append(float(psnr(nothing, truth) - prior))
    assert min(true) > 3, true
    assert max(null) < 0.5, null
