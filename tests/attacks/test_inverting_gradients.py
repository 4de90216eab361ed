"""Inverting Gradients against the prior, and the parts it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.matching.gradients import Matcher, total_variation
from leakboard.attacks.reconstruction.matching.labels import recover_labels
from leakboard.attacks.reconstruction.prior import Prior
from leakboard.contract.worlds import World, make_world
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.soteria import Soteria
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.metrics.psnr import psnr
from tests.attacks.clock import LONG_AGO, NEVER, time_ends_after


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(FedSGD(), model="convnet", rounds=1, targets=4, auxiliary=300)


def rebuilt(world: World, attack: InvertingGradients | Prior) -> Tensor:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
    answer = attack.reconstruct(knowledge, ReconstructionTask("first", 0, 4, 1, None, (1,) * 4))
    return torch.cat(list(answer.images))


def test_at_batch_one_it_is_clearly_above_the_prior_on_every_target(world: World) -> None:
    targets = world.shards["client:0"].images[:4]
    floor = psnr(rebuilt(world, Prior()), targets)
    reached = psnr(rebuilt(world, InvertingGradients(iterations=300)), targets)
    assert bool((reached > floor + 3).all()), (reached, floor)


def test_the_truth_costs_nothing_and_noise_costs_more(world: World) -> None:
    task = task_of(world.outcome.public)
    problems = ReconstructionTask("first", 0, 4, 1, None, (1,) * 4).problems(
        Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
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
        Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
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
    world = make_world(FedSGD(), model="convnet", model_parameters={"width": 2, "norm": "batch"}, rounds=1, targets=2)
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
    problems = ReconstructionTask("first", 0, 2, 1, None, (1,) * 2).problems(knowledge)
    truth = world.shards["client:0"].select(torch.arange(2))
    matcher = Matcher(knowledge.task, problems, truth.labels[:, None], 1, "cpu")
    assert float(matcher.costs(truth.images[:, None]).detach().max()) < 1e-4


@dataclass(frozen=True)
class Given(ReconstructionTask):
    """These problems, whatever the view says."""

    found: tuple[Inversion, ...] = ()

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        return self.found


def given(problems: tuple[Inversion, ...]) -> Given:
    return Given("first", 0, len(problems), 1, None, (1,) * len(problems), problems)


def known_and_problems(world: World) -> tuple[Knowledge, tuple[Inversion, ...]]:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
    return knowledge, ReconstructionTask("first", 0, 4, 1, None, (1,) * 4).problems(knowledge)


def test_what_else_is_attacked_beside_it_and_in_which_order_does_not_matter(world: World) -> None:
    """Tolerance: a thousandth of the image range, after 20 iterations; the arithmetic differs in the last bits."""
    knowledge, problems = known_and_problems(world)
    attack = InvertingGradients(iterations=20, restarts=2)
    straight = attack.reconstruct(knowledge, given(problems)).images
    turned = attack.reconstruct(knowledge, given(problems[::-1])).images
    fewer = attack.reconstruct(knowledge, given(problems[2:])).images
    for a, b in zip(straight, turned[::-1], strict=True):
        assert torch.allclose(a, b, atol=1e-3)
    for a, b in zip(straight[2:], fewer, strict=True):
        assert torch.allclose(a, b, atol=1e-3)


def test_the_normalisation_of_the_data_hardly_matters(world: World) -> None:
    """The same function of the image, written with another scale of the inputs: the scores stay within 2 dB.

    The mean over three starts, since one image of four that ends elsewhere moves a single start by 2.5 dB.
    Not exactly the same: the gradient of the first layer weighs more in the cosine when its inputs are smaller.
    """
    knowledge, problems = known_and_problems(world)
    targets = world.shards["client:0"].images[:4]
    other = world.outcome.public.model_copy(update={"std": tuple(2 * s for s in world.outcome.public.std)})
    first = knowledge.task.parameter_names[0]
    model = {**problems[0].model, first: 2 * problems[0].model[first]}
    task = task_of(other)
    labels = world.shards["client:0"].labels[:4]
    assert torch.allclose(task.predict(model, targets), knowledge.task.predict(problems[0].model, targets), atol=1e-5)
    moved = tuple(
        Inversion(model, Gradient(task.gradient(model, x[None], y[None])[0], 1, 1), None)
        for x, y in zip(targets, labels, strict=True)
    )
    attack = InvertingGradients(iterations=200)
    away = replace(knowledge, view=replace(knowledge.view, public=other))
    differences = [
        psnr(torch.cat(attack.reconstruct(replace(knowledge, seed=seed), given(problems)).images), targets).mean()
        - psnr(torch.cat(attack.reconstruct(replace(away, seed=seed), given(moved)).images), targets).mean()
        for seed in (3, 4, 5)
    ]
    assert float(torch.stack(differences).abs().mean()) < 2, differences


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_the_device_hardly_matters(world: World) -> None:
    """Costs to 1e-4: the same sums in another order."""
    knowledge, problems = known_and_problems(world)
    labels = world.shards["client:0"].labels[:4, None]
    images = torch.rand(4, 1, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    here = Matcher(knowledge.task, problems, labels, 1, "cpu").slopes(images)
    there = Matcher(knowledge.task, problems, labels, 1, "cuda").slopes(images.cuda())
    assert torch.allclose(here[0], there[0].cpu(), atol=1e-4)
    assert float((here[1] - there[1].cpu()).norm() / here[1].norm()) < 1e-2


def test_at_its_deadline_it_answers_with_the_best_so_far(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    knowledge, problems = known_and_problems(world)
    long = InvertingGradients(iterations=1_000_000)  # without the limit it would take hours
    late = long.reconstruct(replace(knowledge, deadline=LONG_AGO), given(problems))
    assert late.images[0].shape == (1, 1, 32, 32)
    assert "stopped at its time limit after 0 of 1000000 iterations" in late.flags
    done = InvertingGradients(iterations=2).reconstruct(replace(knowledge, deadline=NEVER), given(problems))
    assert not any("time limit" in flag for flag in done.flags)
    time_ends_after(3, monkeypatch)
    answer = long.reconstruct(knowledge, given(problems))
    assert "stopped at its time limit after 3 of 1000000 iterations" in answer.flags
    assert not torch.equal(answer.images[0], late.images[0])


class Sparse(FedSGD):
    """A defense that sends only the larger half of every layer; an attacker sees which half."""

    def mimic(self, observed: Gradient, public: Public) -> Callable[[Parameters], Parameters] | None:
        kept = {name: value != 0 for name, value in observed.values.items()}
        return lambda gradient: {name: value * kept[name] for name, value in gradient.items()}


def test_the_adaptive_form_does_to_candidates_what_the_defense_does(world: World) -> None:
    """Only then the truth costs nothing, and the search takes another way."""
    knowledge, problems = known_and_problems(world)
    against = replace(knowledge, defense=Sparse())
    sent = tuple(
        Inversion(
            p.model, Gradient({n: g * (g.abs() > g.abs().median()) for n, g in p.gradient.values.items()}, 1, 1), None
        )
        for p in problems
    )
    plain, adaptive = InvertingGradients(iterations=3), InvertingGradients(iterations=3, mimic=True)
    assert adaptive.adaptive
    assert not plain.adaptive
    truth = world.shards["client:0"].select(torch.arange(4))
    costs = [
        Matcher(knowledge.task, sent, truth.labels[:, None], 1, "cpu", attack.imitations(against, sent)).costs(
            truth.images[:, None]
        )
        for attack in (plain, adaptive)
    ]
    assert float(costs[0].min()) > 1e-3
    assert float(costs[1].max()) < 1e-5
    assert not torch.equal(*(attack.reconstruct(against, given(sent)).images[0] for attack in (plain, adaptive)))
    without = (attack.reconstruct(knowledge, given(sent)).images[0] for attack in (plain, adaptive))
    assert torch.equal(*without), "fedsgd does nothing to imitate"


def test_imitating_the_zeroed_columns_breaks_soteria() -> None:
    """The known adaptive attack (Balunovic et al. 2022). Plain matching ends below a guess, imitation above it."""
    scheme = Soteria(directions=8)
    world = make_world(scheme, model="convnet", model_parameters={"width": 8}, rounds=1, targets=1, auxiliary=50)
    knowledge, target = Knowledge(world.view("server"), scheme, world.auxiliary, 3), world.shards["client:0"].images[:1]
    asked = ReconstructionTask("first", 0, 1, 1, None, (1,))
    guess, plain, adaptive = (
        float(psnr(torch.cat(attack.reconstruct(knowledge, asked).images), target))
        for attack in (
            Prior(),
            InvertingGradients(iterations=400, tv=0.03),
            InvertingGradients(iterations=400, tv=0.03, mimic=True),
        )
    )
    assert plain < guess < guess + 2 < adaptive


def test_a_zero_gradient_is_flagged(world: World) -> None:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)

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
    world = make_world(FedSGD(), model_parameters={"hidden": [32], "bias": bias}, shard=60, rounds=80, batch_size=20)
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
