"""`lb.attack` on updates of several local steps, and on the batch-norm statistics that come with an update."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakboard as lb
from leakboard.attacks.base import TAKEN_FOR_GRADIENT, Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.unrolled import Unrolled
from leakboard.contract.worlds import make_world
from leakboard.defenses.fedavg import FedAvg
from leakboard.federation.payload import Parameters
from leakboard.federation.recording import Exchange, Recorder
from leakboard.federation.task import task_of

SHAPE, CLASSES, RATE, STEPS = (1, 8, 8), 3, 0.2, 4
LOCAL: dict[str, Any] = {"learning_rate": RATE, "local_steps": STEPS, "local_batches": 2, "records": 4}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def secret() -> tuple[Tensor, Tensor]:
    return torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def after(net: nn.Module, loss: nn.Module) -> dict[str, Tensor]:
    """The weights after a plain loop: four steps, on the first and the last two records in turn."""
    trained = copy.deepcopy(net)
    optimiser = torch.optim.SGD(trained.parameters(), lr=RATE)
    images, labels = secret()
    for step in range(STEPS):
        part = slice(0, 2) if step % 2 == 0 else slice(2, 4)
        aim = nn.functional.one_hot(labels, CLASSES).float() if isinstance(loss, nn.MSELoss) else labels
        optimiser.zero_grad()
        loss(trained(images[part]), aim[part]).backward()
        optimiser.step()
    return dict(trained.state_dict())


def difference(net: nn.Module, later: Parameters) -> Parameters:
    return {name: value.detach() - later[name] for name, value in net.state_dict().items()}


class Noting(lb.ReconstructionAttack):
    """Hands in the auxiliary images, and keeps the problem that it was given."""

    name = "noting"
    seen: Any = None

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> lb.ReconstructionAnswer:
        type(self).seen = task.problems(knowledge)[0]
        return lb.ReconstructionAnswer((knowledge.auxiliary.images,))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss(reduction="sum")])
def test_the_truth_costs_nothing_once_the_schedule_is_given(loss: nn.Module) -> None:
    net = network()
    update, known = difference(net, after(net, loss)), secret()[1]
    given: dict[str, Any] = {"model": net, "update": update, "loss": loss, "labels": known, "auxiliary": secret()}
    right = lb.attack(Noting, **given, **LOCAL)
    assert right.cost == pytest.approx(0, abs=1e-5)
    one_step = lb.attack(Noting, **given, learning_rate=RATE, records=4)
    assert one_step.cost is not None
    assert one_step.cost > 1e-3  # which is why the steps matter


def test_unrolled_uses_the_steps_and_others_say_that_they_do_not() -> None:
    net = network()
    update = difference(net, after(net, nn.CrossEntropyLoss()))
    given: dict[str, Any] = {"model": net, "update": update, "shape": SHAPE, "params": {"iterations": 40}, **LOCAL}
    first = lb.attack("unrolled", **{**given, "params": {"iterations": 1}}, labels=secret()[1])
    last = lb.attack("unrolled", **given, labels=secret()[1])
    assert first.cost is not None
    assert last.cost is not None
    assert last.cost < 0.7 * first.cost
    assert TAKEN_FOR_GRADIENT not in last.flags
    assert TAKEN_FOR_GRADIENT in lb.attack("inverting-gradients", **given).flags


def test_a_federation_s_own_update_gives_the_images_of_its_cell() -> None:
    settings = {"local_steps": 2, "local_batches": 1, "local_learning_rate": 0.05}
    world = make_world(FedAvg(), model="convnet", rounds=1, targets=1, auxiliary=60)
    public = world.outcome.public
    told = public.model_copy(update={"training": public.training.model_copy(update=settings)})
    view, chosen = replace(world.view("server"), public=told), Unrolled(iterations=3)
    knowledge, task = Knowledge(view, FedAvg(), world.auxiliary, 3), ReconstructionTask("first", 0, 1, 1, None, (1,))
    (problem,) = task.problems(knowledge)
    ours = chosen.reconstruct(knowledge, task)
    net = task_of(public).skeleton()
    net.load_state_dict(problem.model)
    assert problem.update is not None
    theirs = lb.attack(
        chosen,
        model=net,
        update=problem.update.values,
        learning_rate=0.05,
        local_steps=2,
        loss=public.training.loss,
        auxiliary=world.auxiliary,
        mean=public.mean,
        std=public.std,
        seed=3,
    )
    assert torch.equal(theirs.images, ours.images[0])


@pytest.mark.parametrize("way", ["update", "transcript"])
def test_statistics_of_batch_norm_reach_the_attack(way: str, tmp_path: Path) -> None:
    net = network()
    later = after(net, nn.CrossEntropyLoss())
    given: dict[str, Any] = {"update": difference(net, later)}
    if way == "transcript":
        state = {name: value.detach().clone() for name, value in net.state_dict().items()}
        Recorder(tmp_path / "made", party="server", source="a test").note(1, [Exchange("client:1", state, later, 4)])
        given = {"transcript": tmp_path / "made"}
    lb.attack(Noting, model=net, auxiliary=secret(), **given, **LOCAL)
    assert set(Noting.seen.statistics) == {"1.running_mean", "1.running_var"}
    for name, value in Noting.seen.statistics.items():
        torch.testing.assert_close(value, later[name])
    lb.attack(Noting, model=net.eval(), auxiliary=secret(), **given, **LOCAL)  # in eval mode they tell nothing
    assert not Noting.seen.statistics


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"local_steps": 0}, "`local_steps` must be a whole number"),
        ({"local_batches": 3}, "`local_batches` must divide the records"),
        ({"local_steps": 1}, "at most `local_steps`"),
        ({"update": None, "gradient": True}, "one gradient has no local steps"),
    ],
)
def test_a_wrong_schedule_gets_one_sentence(changes: dict[str, Any], expected: str) -> None:
    net = network()
    update = {name: value.detach() for name, value in net.named_parameters()}
    given: dict[str, Any] = {"update": update, **LOCAL, **changes}
    if given.get("gradient"):
        given["gradient"] = update
    with pytest.raises(lb.UserError) as caught:
        lb.attack("unrolled", model=net, shape=SHAPE, **given)
    assert expected in str(caught.value)


def test_a_schedule_that_contradicts_the_transcript_is_refused() -> None:
    settings = {"local_steps": 4, "local_batches": 2, "local_learning_rate": 0.05}
    world = make_world(FedAvg(), model="convnet", rounds=1, targets=1, auxiliary=60)
    public = world.outcome.public
    training = public.training.model_copy(update={**settings, "batch_size": 2})
    view = replace(world.view("server"), public=public.model_copy(update={"training": training}))
    two = (world.auxiliary.images[:2], world.auxiliary.labels[:2])
    given: dict[str, Any] = {"model": task_of(public).skeleton(), "transcript": view, "auxiliary": two, "records": 2}
    with pytest.raises(lb.UserError, match="The transcript says 4 local steps on 2 batches; given: 3 on 2"):
        lb.attack(Noting, **given, local_steps=3, local_batches=2)
    schedules: tuple[dict[str, Any], ...] = ({}, {"local_steps": 4, "local_batches": 2})
    for same in schedules:  # nothing, or the same, is no contradiction
        assert len(lb.attack(Noting, **given, **same).images) == 2
