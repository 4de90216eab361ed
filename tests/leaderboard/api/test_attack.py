"""`lb.attack` on modules and updates that no federation of ours made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakboard as lb
from leakboard.attacks.base import Attack, Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.dlg import Dlg
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.prior import Prior
from leakboard.contract.small import small
from leakboard.contract.worlds import World, make_world
from leakboard.core import registry
from leakboard.core.vision import torchvision
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.ldp import Ldp
from leakboard.federation.task import task_of
from leakboard.leaderboard.cells.answer import load_answer
from leakboard.leaderboard.cells.question import make_question
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.metrics.psnr import psnr
from tests.attacks.third_party import Reversed
from tests.leaderboard.api.foreign import CLASSES, SHAPE, convnet, gradient_of, perceptron, refusal, smooth

LEARNED = ("ridge", "message-ridge", "learning-to-invert", "resnet-inversion")


class Shuffling(nn.Module):
    """A user's network with whole numbers among its buffers."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(256, generator=torch.Generator().manual_seed(0)))
        self.last = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1)[:, self.order])  # type: ignore[no-any-return]


@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("name", LEARNED)
def test_learned_attacks_take_a_network_with_an_index_table(name: str, records: int) -> None:
    net, (images, labels) = Shuffling(), smooth(40)
    chosen = registry.load("attack", name)
    assert issubclass(chosen, Attack)
    found = lb.attack(
        small(chosen),
        model=net,
        gradient=gradient_of(net, images[:records], labels[:records]),
        records=records,
        auxiliary=(images[10:], labels[10:]),
    )
    assert found.images.shape == (records, *SHAPE)
    assert bool(found.images.isfinite().all())


@pytest.mark.parametrize("name", LEARNED)
def test_learned_attacks_refuse_a_defense_that_does_not_say_what_it_does(name: str) -> None:
    """Its clients cannot be simulated on a user's network, and learning from plain gradients would mislead."""
    images, labels = smooth(30)
    said = refusal(name=name, defense=Reversed(), auxiliary=(images, labels))
    assert f"'{name}'" in said
    assert "the defense changes updates, and no hook says how" in said


# --- the same gradient gives the same images as in our own cells ---------------------------------


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(FedSGD(), model="convnet", rounds=1, targets=2, auxiliary=60)


@pytest.mark.parametrize("chosen", [InvertingGradients(iterations=10), Dlg(iterations=2, restarts=1), Prior()])
@pytest.mark.parametrize("probes", [1, 2])
def test_the_same_gradient_gives_the_same_images_bit_for_bit(world: World, chosen: Any, probes: int) -> None:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
    task = ReconstructionTask("first", 0, probes, 1, None, (1,) * probes)
    ours = chosen.reconstruct(knowledge, task)
    problems, public = task.problems(knowledge), world.outcome.public
    net = task_of(public).skeleton()
    net.load_state_dict(problems[0].model)
    gradients = [problem.gradient.values for problem in problems]
    theirs = lb.attack(
        chosen,
        model=net,
        gradient=gradients if probes > 1 else gradients[0],
        loss=public.training.loss,
        auxiliary=world.auxiliary,
        mean=public.mean,
        std=public.std,
        seed=3,
    )
    assert torch.equal(theirs.images, torch.cat(list(ours.images)))
    assert theirs.flags == ours.flags


def test_a_cell_of_a_run_has_the_same_images(tiny_run: Path) -> None:
    """The answer that a cell's own process gave, against `lb.attack` on what its view held."""
    (job, *_) = (
        job
        for job in open_run(tiny_run).jobs
        if job.cell is not None and (job.cell.attack.name, job.cell.moment) == ("inverting-gradients", "last")
    )
    question = make_question(job)
    knowledge, public = question.knowledge, question.knowledge.public
    problems = question.task.problems(knowledge)
    net = task_of(public).skeleton()
    net.load_state_dict(problems[0].model)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a cell
    try:
        found = lb.attack(
            question.attack,
            model=net,
            gradient=[problem.gradient.values for problem in problems],
            loss=public.training.loss,
            auxiliary=knowledge.auxiliary,
            mean=public.mean,
            std=public.std,
            seed=knowledge.seed,
        )
    finally:
        torch.set_num_threads(threads)
    kept, _ = load_answer(question.goal, job.answer_file)
    assert torch.equal(found.images, torch.cat(list(kept.images)))


def test_the_caller_s_module_stays_as_it_was(world: World) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(784, CLASSES))
    images, labels = smooth(2)
    gradient = gradient_of(net, images, labels)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    lb.attack("inverting-gradients", model=net, gradient=gradient, records=2, shape=SHAPE, params={"iterations": 2})
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())


# --- modules, losses and forms of updates -----------------------------------------------------------


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_a_module_with_its_own_forward_pass_is_inverted(loss: str) -> None:
    net, (images, labels) = convnet(), smooth(1)
    target = nn.functional.one_hot(labels, CLASSES).float()
    half = 0.5 * CLASSES
    losses: dict[str, Callable[..., Tensor]] = {
        "ce": nn.CrossEntropyLoss(),
        "mse": lambda z, y: half * nn.functional.mse_loss(z, target),
    }
    gradient = gradient_of(net, images, labels, losses[loss])
    found = lb.attack(
        "inverting-gradients",
        model=net,
        gradient=gradient,
        loss=loss,
        shape=SHAPE,
        params={"iterations": 150, "tv": 0.001},
    )
    assert found.labels is not None
    assert found.labels.tolist() == labels.tolist()
    assert found.cost is not None
    assert found.cost < 0.01
    assert float(psnr(found.images, images)) > 20


def test_torch_s_own_losses_are_brought_into_our_form() -> None:
    """DLG compares sizes too, so a wrong factor would cost it its answer."""
    net, (images, labels) = perceptron(), smooth(1)
    target = nn.functional.one_hot(labels, CLASSES).float()
    given = {
        nn.CrossEntropyLoss(): gradient_of(net, images, labels),
        nn.CrossEntropyLoss(reduction="sum"): gradient_of(net, images, labels, nn.CrossEntropyLoss(reduction="sum")),
        nn.MSELoss(): gradient_of(net, images, target, nn.MSELoss()),
        nn.MSELoss(reduction="sum"): gradient_of(net, images, target, nn.MSELoss(reduction="sum")),
    }
    for loss, gradient in given.items():
        found = lb.attack("analytic", model=net, gradient=gradient, loss=loss, shape=SHAPE)
        assert found.diagnostics["residual"] < 1e-3, loss
        assert float(psnr(found.images, images)) > 40, loss


def test_an_update_is_the_gradient_times_the_learning_rate() -> None:
    net, (images, labels) = perceptron(), smooth(1)
    gradient = gradient_of(net, images, labels)
    before = {name: value.detach().clone() for name, value in net.state_dict().items()}
    optimiser = torch.optim.SGD(net.parameters(), 0.25)
    nn.functional.cross_entropy(net(images), labels).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    update = {name: before[name] - value.detach() for name, value in net.state_dict().items()}
    net.load_state_dict(before)
    by_update = lb.attack("analytic", model=net, update=update, learning_rate=0.25, shape=SHAPE)
    in_order = lb.attack("analytic", model=net, gradient=list(gradient.values()), shape=SHAPE)
    assert torch.allclose(by_update.images, in_order.images, atol=1e-2)
    assert float(psnr(in_order.images, images)) > 40


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norm_keeps_its_mode(mode: str) -> None:
    """In eval mode the running statistics count, in train mode the batch's: taking the other one costs the match."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(1536, 5))
    images, labels = smooth(2)
    net(images + 1)  # statistics that differ from the batch's
    net.train(mode == "train")
    gradient = gradient_of(net, images, labels)
    settings: dict[str, Any] = {"gradient": gradient, "records": 2, "labels": labels, "auxiliary": (images, labels)}
    right = lb.attack("prior", model=net, params={"guess": "random"}, **settings)
    exact = lb.attack(_Answers, model=net, **settings)
    net.train(mode != "train")
    wrong = lb.attack(_Answers, model=net, **settings)
    assert exact.cost is not None
    assert right.cost is not None
    assert wrong.cost is not None
    assert exact.cost < 1e-5
    assert wrong.cost > 1e-3


class _Answers(lb.ReconstructionAttack):
    """Hands in the auxiliary images, so that a test can ask what the truth costs."""

    name = "answers"

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> lb.ReconstructionAnswer:
        return lb.ReconstructionAnswer(tuple(torch.split(knowledge.auxiliary.images, list(task.sizes))))


def test_the_resnet_of_torchvision_in_eval_mode() -> None:
    torchvision()
    from torchvision.models.resnet import BasicBlock, ResNet

    torch.manual_seed(3)
    net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES).eval()
    images, labels = smooth(1, shape=(3, 32, 32))
    found = lb.attack(_Answers, model=net, gradient=gradient_of(net, images, labels), auxiliary=(images, labels))
    assert found.labels is not None
    assert found.cost is not None
    assert found.labels.tolist() == labels.tolist()
    assert found.cost < 1e-4
    tried = lb.attack(
        "inverting-gradients",
        model=net,
        gradient=gradient_of(net, images, labels),
        shape=(3, 32, 32),
        params={"iterations": 1},
    )
    assert tried.images.shape == images.shape


def test_frozen_parameters_are_constants() -> None:
    net, (images, labels) = convnet(), smooth(1)
    next(net.parameters()).requires_grad_(False)
    found = lb.attack(_Answers, model=net, gradient=gradient_of(net, images, labels), auxiliary=(images, labels))
    assert found.cost is not None
    assert found.cost < 1e-5


def test_images_are_in_the_units_before_normalisation(tmp_path: Path) -> None:
    net, (images, labels) = perceptron(), smooth(1)
    gradient = gradient_of(net, (images - 0.3) / 0.2, labels)
    found = lb.attack("analytic", model=net, gradient=gradient, shape=SHAPE, mean=0.3, std=[0.2])
    assert float(psnr(found.images, images)) > 40
    assert found.save(tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(lb.UserError, match="no membership scores"):
        _ = found.scores


def test_a_defense_is_imitated() -> None:
    """noise-aware asks the given defense for its noise; without one it says that there is nothing to imitate."""
    net, (images, labels) = perceptron(), smooth(40)
    gradient = gradient_of(net, images[:1], labels[:1])
    settings: dict[str, Any] = {"gradient": gradient, "auxiliary": (images, labels), "params": {"iterations": 2}}
    plain = lb.attack("noise-aware", model=net, **settings)
    aware = lb.attack("noise-aware", model=net, defense=Ldp(epsilon=1000.0), **settings)
    assert any("nothing of the defense" in flag for flag in plain.flags)
    assert not any("nothing of the defense" in flag for flag in aware.flags)


# --- membership -----------------------------------------------------------------------------------


def test_membership_in_a_batch_from_its_gradient() -> None:
    net, (images, labels) = convnet(), smooth(30)
    gradient = gradient_of(net, images[:6], labels[:6])
    found = lb.attack(
        "gradient-membership",
        model=net,
        gradient=gradient,
        records=6,
        candidates=(images[:12], labels[:12]),
        auxiliary=(images[12:], labels[12:]),
    )
    assert found.decisions.tolist() == [True] * 6 + [False] * 6
    assert found.cost is None
    with pytest.raises(lb.UserError, match="no images"):
        _ = found.images


def test_membership_in_a_training_needs_the_model_alone() -> None:
    net, (images, labels) = convnet(), smooth(40)
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(images[:10]), labels[:10]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    candidates = images[:20], labels[:20]
    found = lb.attack("loss-threshold", model=net, candidates=candidates, auxiliary=(images[20:], labels[20:]))
    assert float(found.scores[:10].min()) > float(found.scores[10:].median())
    known = images[::2], labels[::2], torch.arange(0, 40, 2) < 10
    learned = lb.attack("known-members", model=net, candidates=candidates, known=known, params={"epochs": 3})
    assert len(learned.scores) == 20
    assert "was told 5 members" in learned.flags[0]


def test_a_class_and_a_file_are_attacks_too(tmp_path: Path) -> None:
    net, (images, labels) = perceptron(), smooth(1)
    file = tmp_path / "zeros.py"
    file.write_text(
        "import torch, leakboard as lb\n"
        "class Zeros(lb.ReconstructionAttack):\n"
        "    'All black.'\n"
        "    name = 'zeros'\n"
        "    def reconstruct(self, knowledge, task):\n"
        "        return lb.ReconstructionAnswer(tuple(torch.zeros(n, *knowledge.public.shape) for n in task.sizes))\n"
    )
    gradient = gradient_of(net, images, labels)
    assert not bool(lb.attack(file, model=net, gradient=gradient, shape=SHAPE).images.any())
    assert issubclass(_Answers, Attack)
