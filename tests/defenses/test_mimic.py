"""What a defense tells adaptive attacks to imitate."""

from __future__ import annotations

import pytest
import torch

from attacks.base import NOTHING_TO_IMITATE, Knowledge, ReconstructionTask
from attacks.reconstruction.dlg import Dlg
from attacks.reconstruction.inverting_gradients import InvertingGradients
from core import registry
from defenses.base import Defense, Gradient
from defenses.grad_prune import GradPrune, pruned
from defenses.ldp import Ldp
from federation.payload import Parameters
from tests.contract.worlds import make_world
from tests.defenses.makings import public_of


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
def test_clipping_is_imitated_for_one_record(bound: float) -> None:
    true = gradient()
    size = float(torch.cat([v.flatten() for v in true.values()]).norm())
    imitate = Ldp(clip=bound).mimic(Gradient(true, 1, 1), public_of())
    assert imitate is not None
    made = imitate(batched(true))
    expected = min(1.0, bound / size)
    assert all(torch.allclose(made[name][0], expected * true[name]) for name in true)


def test_the_mean_over_several_cannot_be_clipped_as_a_whole() -> None:
    assert Ldp().mimic(Gradient(gradient(), 1, 2), public_of()) is None
    assert GradPrune().mimic(Gradient(gradient(), 3, 3), public_of()) is None


@pytest.mark.parametrize(
    ("attack", "defense", "says"),
    [
        (InvertingGradients(iterations=1, mimic=True), "fedavg", True),
        (InvertingGradients(iterations=1, mimic=True), "ldp", True),
        (InvertingGradients(iterations=1, mimic=True), "grad-prune", False),
        (InvertingGradients(iterations=1), "fedavg", False),
        (Dlg(iterations=1, restarts=1, mimic=True), "ldp", False),
        (Dlg(iterations=1, restarts=1, mimic=True), "fedavg", True),
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
