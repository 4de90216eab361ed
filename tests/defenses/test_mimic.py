"""What a defense tells adaptive attacks to imitate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from leakboard.attacks.base import NOTHING_TO_IMITATE, Inversion, Knowledge, ReconstructionTask
from leakboard.attacks.building_blocks.candidate_transform import candidate_transform_of
from leakboard.attacks.reconstruction.dlg import Dlg, _distance
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.matching.gradients import Matcher
from leakboard.contract.worlds import make_world
from leakboard.core import registry
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.building_blocks.summed_codes import SummedGradient, rounding
from leakboard.defenses.building_blocks.vectors import flat
from leakboard.defenses.crypto.fixed_point import FixedPoint
from leakboard.defenses.grad_prune import GradPrune, pruned
from leakboard.defenses.ldp import Ldp
from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters
from leakboard.federation.task import task_of
from leakboard.federation.view import View
from tests.defenses.makings import create, images_of, public_of

EMPTY = LabelledImages(torch.empty(0, 1, 16, 16), torch.empty(0, dtype=torch.long))


def gradient(seed: int = 0) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(3, 4, generator=generator), "b": torch.randn(5, generator=generator)}


def batched(values: Parameters) -> Parameters:
    return {name: value[None] for name, value in values.items()}


def test_a_pruned_gradient_is_imitated_exactly_by_its_own_source() -> None:
    true = gradient()
    sent = {name: pruned(value, 0.6) for name, value in true.items()}
    imitate = GradPrune(ratio=0.6).mimic(Gradient(sent, 1, 1), public_of())
    assert imitate is not None
    made = imitate(batched(true))
    assert all(torch.equal(made[name][0], sent[name]) for name in sent)


@pytest.mark.parametrize("bound", [0.1, 100.0])
def test_each_record_is_clipped_by_its_own_norm(bound: float) -> None:
    several = [gradient(0), gradient(1)]
    imitate = Ldp(clip=bound).mimic_records(Gradient(gradient(), 1, 2), public_of())
    assert imitate is not None
    made = imitate({name: torch.stack([g[name] for g in several]) for name in several[0]})
    for index, true in enumerate(several):
        factor = min(1.0, bound / float(torch.cat([v.flatten() for v in true.values()]).norm()))
        assert all(torch.allclose(made[name][index], factor * true[name]) for name in true)


def test_without_clipping_and_in_a_mean_over_clients_there_is_nothing_to_imitate() -> None:
    assert Ldp(clip=None).mimic_records(Gradient(gradient(), 1, 2), public_of()) is None
    assert GradPrune().mimic(Gradient(gradient(), 3, 3), public_of()) is None


@pytest.mark.parametrize("name", ["secagg", "tp-smc", "hybridalpha"])
def test_rounding_to_codes_is_imitated_client_by_client(name: str) -> None:
    """The mean of two clients' decoded codes comes from their gradients; without imitation it is off by steps."""
    # a range that makes the steps of 16, 24 and 44 bits visible
    bits = {"secagg": 44, "tp-smc": 24, "hybridalpha": 16}[name]
    quiet: dict[str, Any] = {} if name == "secagg" else {"noise": False, "clip": None}
    defense = create(name, value_range=0.03 * 2.0**bits, **quiet)
    assert isinstance(defense, SummedGradient)
    public = public_of(defense=defense)
    true = [task_of(public).initial(seed) for seed in (0, 1)]
    codec = defense.codec(public, 5)
    totals = sum(codec.encode(flat(one)) for one in true)
    assert not isinstance(totals, int)
    context = RoundContext(0, None, "train", public.clients[:2], 5)
    observed = Gradient(defense.decoded(public, context, totals, 2)["gradient"], 2, 10)
    imitation = candidate_transform_of(defense, observed, public)
    assert imitation is not None
    assert imitation.parts == 2
    both = {n: torch.stack([one[n] for one in true]) for n in observed.values}
    made = imitation(both)
    assert all(torch.allclose(made[n][0], v, atol=1e-6) for n, v in observed.values.items())
    assert any(not torch.allclose(both[n].mean(0), v, atol=1e-3) for n, v in observed.values.items())
    assert imitation.noticed(observed.values, scale=False)


def test_the_rounding_lets_derivatives_through_and_saturates() -> None:
    x = torch.tensor([0.2, 0.3, 9.0], requires_grad=True)
    (slope,) = torch.autograd.grad(rounding(FixedPoint(3, 1.5), x).sum(), x)
    assert slope.tolist() == [1.0, 1.0, 0.0]


def test_noise_before_the_rounding_leaves_clipping_alone_to_imitate() -> None:
    defense = create("hybridalpha")
    found = candidate_transform_of(defense, Gradient(gradient(), 1, 2), public_of(defense=defense))
    assert found is not None
    assert found.of_update is None
    assert found.of_record is not None


def test_steps_that_no_attack_sees_are_said_to_be_nothing() -> None:
    defense = create("secagg")
    found = candidate_transform_of(defense, Gradient(gradient(), 3, 3), public_of(defense=defense))
    assert found is not None
    assert not found.noticed(gradient(), scale=True)
    coarse = candidate_transform_of(
        create("secagg", value_range=2.0**41), Gradient(gradient(), 3, 3), public_of(defense=defense)
    )
    assert coarse is not None
    assert coarse.noticed(gradient(), scale=True)


@pytest.mark.parametrize(
    ("attack", "defense", "says"),
    [
        (InvertingGradients(iterations=1, mimic=True), "fedsgd", True),
        (InvertingGradients(iterations=1, mimic=True), "ldp", True),
        (InvertingGradients(iterations=1, mimic=True), "grad-prune", False),
        (InvertingGradients(iterations=1), "fedsgd", False),
        (Dlg(iterations=1, restarts=1, mimic=True), "ldp", False),
        (Dlg(iterations=1, restarts=1, mimic=True), "fedsgd", True),
    ],
)
def test_an_adaptive_attack_says_where_there_is_nothing_to_imitate(
    attack: InvertingGradients | Dlg, defense: str, says: bool
) -> None:
    """A cosine does not see that ldp scales; a squared distance does."""
    made = registry.create("defense", defense)
    assert isinstance(made, Defense)
    world = make_world(made, model_parameters={"hidden": [4]}, rounds=1, targets=1)
    task = ReconstructionTask("first", 0, 1, 1, None, (1,))
    answer = attack.reconstruct(Knowledge(world.view("server"), made, world.auxiliary, 0), task)
    assert any(flag.startswith(NOTHING_TO_IMITATE) for flag in answer.flags) == says


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cdp", {"clip": 0.5}),
        ("ldp", {"clip": 0.5, "noise": False}),
        ("hybridalpha", {"clip": 0.5, "noise": False}),
        ("hybridalpha", {"clip": None, "noise": False, "value_range": 2000.0}),
        ("secagg", {"value_range": 2.0**38}),
    ],
)
def test_the_truth_costs_nothing_where_a_client_really_sent_it(name: str, parameters: dict[str, Any]) -> None:
    """A batch of four through the defense's own client code, against the cosine and the squared distance."""
    defense = create(name, **parameters)
    public = public_of("convnet", {"width": 3}, shape=(1, 16, 16), defense=defense, batch_size=4)
    task = task_of(public)
    model = task.initial(0)
    images = images_of(4, 1, 16, 16).float() * torch.tensor([0.1, 0.5, 1.0, 2.0]).view(-1, 1, 1, 1)
    labels = torch.tensor([0, 1, 2, 2])
    sent = defense.simulate(public, {"model": model}, images, labels, seed=0)["gradient"]
    problem = Inversion(model, Gradient(sent, 1, 4), labels)
    imitation = candidate_transform_of(defense, problem.gradient, public)
    assert imitation is not None
    costs, distances = [], []
    for told in (None, imitation):
        costs.append(float(Matcher(task, (problem,), labels[None], 1, "cpu", (told,)).costs(images[None])))
        distance = _distance(Knowledge(View("server", (), public, (), {}, {}), defense, EMPTY, 0), problem, told)
        distances.append(float(distance(task.normalise(images), one_hot(labels, public.classes).float()).detach()))
    assert costs[1] < 1e-6 < 1e-5 < costs[0]
    assert distances[1] < 1e-6 < 1e-4 < distances[0]
