"""`lb.attack` on modules and updates that no federation of ours made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakboard as lb
from leakboard.attacks.base import TAKEN_FOR_GRADIENT, Attack, Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.dlg import Dlg
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.prior import Prior
from leakboard.contract.worlds import World, make_world
from leakboard.core.vision import torchvision
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.ldp import Ldp
from leakboard.federation.payload import Parameters
from leakboard.federation.recording import Exchange, Recorder
from leakboard.federation.task import task_of
from leakboard.leaderboard.cells.answer import load_answer
from leakboard.leaderboard.cells.question import make_question
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.metrics.psnr import psnr

SHAPE, CLASSES = (1, 16, 16), 5


def smooth(count: int, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> tuple[Tensor, Tensor]:
    """Images that are smooth, as photographs are, with labels."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator)
    labels = torch.arange(count) % CLASSES
    return nn.functional.interpolate(coarse, shape[1:], mode="bilinear"), labels


def convnet() -> nn.Module:
    """A user's own class, whose forward pass uses `view`."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 8, 3, padding=1)
            self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.last = nn.Linear(8 * 8 * 8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.second(torch.relu(self.first(x))))
            return self.last(x.view(len(x), -1))  # type: ignore[no-any-return]

    torch.manual_seed(1)
    return Net()


def perceptron() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def gradient_of(
    net: nn.Module, images: Tensor, labels: Tensor, loss: Callable[..., Tensor] | None = None
) -> Parameters:
    value = (loss or nn.CrossEntropyLoss())(net(images), labels)
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    return dict(zip(names, torch.autograd.grad(value, trained), strict=True))


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


# --- refusals, one sentence each ------------------------------------------------------------------


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1).round())  # type: ignore[no-any-return]


class Noisy(Rounded):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1) + torch.randn(256))  # type: ignore[no-any-return]


def refusal(net: nn.Module | None = None, name: Any = "inverting-gradients", **changes: Any) -> str:
    """What the call says with one thing changed; `net` is asked for its own gradient."""
    model = net if net is not None else perceptron()
    images, labels = smooth(1)
    settings = {"gradient": gradient_of(model, images, labels), "shape": SHAPE, **changes}
    with pytest.raises(lb.UserError) as caught:
        lb.attack(name, model=model, **settings)
    (sentence,) = caught.value.problems
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_what_cannot_be_attacked_gets_one_sentence() -> None:
    dropout = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, CLASSES))
    assert "dropout in train mode ('1')" in refusal(dropout)
    assert "draws at random" in refusal(Noisy())
    assert "not differentiable" in refusal(Rounded())
    idle = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES))
    gradient = [*gradient_of(idle, *smooth(1)).values(), torch.zeros(1)]
    idle.register_parameter("idle", nn.Parameter(torch.zeros(1)))
    order = {"idle": gradient[2], "1.weight": gradient[0], "1.bias": gradient[1]}
    assert "'idle' has no influence" in _refused(idle, gradient=order)
    assert "at least two classes" in refusal(nn.Sequential(nn.Flatten(), nn.Linear(256, 1)), loss="mse", gradient={})
    assert "must give logits (1, classes) for images (1, 3, 16, 16)" in refusal(shape=(3, 16, 16))


def _refused(net: nn.Module, **settings: Any) -> str:
    with pytest.raises(lb.UserError) as caught:
        lb.attack("inverting-gradients", model=net, shape=SHAPE, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gradient": None}, "needs an update"),
        ({"update": {}}, "only one of"),
        ({"gradient": None, "update": {}}, "needs the `learning_rate`"),
        ({"gradient": {}}, "nothing for the parameter '1.weight' (32, 256)"),
        ({"gradient": {"x": torch.zeros(1)}}, "'x', which is no parameter"),
        ({"gradient": [torch.zeros(1)]}, "must have 4 tensors"),
        ({"gradient": [torch.zeros(32, 256), None, torch.zeros(5, 32), torch.zeros(5)]}, "nothing for the parameter"),
        ({"gradient": [torch.zeros(9), torch.zeros(9), torch.zeros(9), torch.zeros(9)]}, "in shape (32, 256)"),
        ({"gradient": 3}, "a dict of tensors"),
        ({"shape": None}, "shape of an image is not known"),
        ({"shape": (16, 16)}, "three whole numbers"),
        ({"records": 0}, "at least 1"),
        ({"labels": [9]}, "from 0 to 4"),
        ({"loss": "hinge"}, "`loss` must be"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "`loss` must be"),
        ({"std": 0}, "`std` must be"),
        ({"auxiliary": (torch.ones(2, 1, 16, 16) * 2, torch.zeros(2).long())}, "in [0, 1]"),
        ({"auxiliary": smooth(2, shape=(1, 8, 8))}, "images of shape (1, 16, 16)"),
        ({"auxiliary": 3}, "must be (images, labels)"),
        ({"defense": "secagg"}, "no single gradient"),
        ({"transcript": "nowhere", "gradient": None}, "holds no transcript"),
        ({"params": {"iterations": 0}}, "iterations"),
        ({"name": "inverting-gradient"}, "did you mean 'inverting-gradients'"),
        ({"name": "update-inference"}, "needs the view of client"),
        ({"name": "received-model"}, "about extraction"),
        ({"name": "phi-inversion"}, "does not apply here"),
        ({"name": "gifd"}, "`auxiliary`"),
        ({"name": "loss-threshold"}, "needs `candidates`"),
        ({"name": "lira", "candidates": smooth(2)}, "shadow models"),
        ({"name": "gradient-membership", "gradient": None, "candidates": smooth(2)}, "needs an update"),
        ({"device": "tpu"}, "device must be"),
        ({"seed": "x"}, "`seed` must be a whole number"),
        ({"time_limit": 0}, "`time_limit` must be a positive number"),
        ({"auxiliary": (torch.zeros(2, 1, 16, 16), torch.tensor([0, 5]))}, "labels from 0 to 4; given: 0 to 5"),
        ({"known": 3}, "three tensors"),
    ],
)
def test_bad_input_gets_one_sentence(changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(**changes)


# --- transcripts ------------------------------------------------------------------------------------


def recording(folder: Path, net: nn.Module, after: Parameters) -> None:
    state = {name: value.detach().clone() for name, value in net.state_dict().items()}
    recorder = Recorder(folder, party="server", source="a test")
    recorder.note(1, [Exchange("client:7", state, None)])
    recorder.note(2, [Exchange("client:7", state, after, 2, {"loss": 0.5}), Exchange("client:9", state, None)])


def test_a_recorded_update_is_attacked_like_the_gradient(tmp_path: Path) -> None:
    net, (images, labels) = perceptron(), smooth(1)
    gradient = gradient_of(net, images, labels)
    after = {name: value.detach() - 0.25 * gradient[name] for name, value in net.state_dict().items()}
    recording(tmp_path / "made", net, after)
    view = lb.load_view(tmp_path / "made")
    assert view.threat == "server"
    assert [o.context.round for o in view.observations] == [1, 2]
    assert view.observations[1].messages[1].payload["metrics"] == {"loss": 0.5}
    other = perceptron()
    nn.init.zeros_(next(other.parameters()))  # the weights come from the transcript
    settings: dict[str, Any] = {"model": other, "transcript": tmp_path / "made", "round": 2, "learning_rate": 0.25}
    found = lb.attack("analytic", records=1, shape=SHAPE, **settings)
    assert float(psnr(found.images, images)) > 40
    told = lb.attack("inverting-gradients", shape=SHAPE, params={"iterations": 1}, **settings)
    assert len(told.images) == 2  # as many records as the client said
    for changes, expected in (
        ({"round": 3}, "no round 3: allowed are [1, 2]"),
        ({"round": 1}, "no update that can be attacked in round 1"),
        ({"round": 2, "client": "client:9"}, "allowed are client:7"),
        ({"round": 2, "learning_rate": None}, "needs the `learning_rate`"),
    ):
        given: dict[str, Any] = {"transcript": view, "learning_rate": 0.25, "gradient": None, **changes}
        assert expected in refusal(**given)


def test_an_update_of_local_steps_in_a_transcript_is_scaled_and_flagged(world: World) -> None:
    told = world.outcome.public
    training = told.training.model_copy(update={"local_steps": 4, "local_learning_rate": 0.05})
    public = told.model_copy(update={"training": training})
    view = replace(world.view("server"), public=public)
    (observation, *_) = view.of_kind("train")
    sent = next(m.payload["gradient"] for m in observation.messages if m.kind == "update")
    start = next(m.payload["model"] for m in observation.messages if m.kind == "model")
    net = task_of(public).skeleton()
    net.load_state_dict(start)
    settings: dict[str, Any] = {"model": net, "shape": public.shape, "params": {"iterations": 3}}
    settings |= {"loss": public.training.loss, "records": public.training.batch_size}
    found = lb.attack("inverting-gradients", transcript=view, **settings)
    mean = {name: value / (4 * 0.05) for name, value in sent.items()}
    plain = lb.attack("inverting-gradients", gradient=mean, **settings)
    assert torch.equal(found.images, plain.images)
    assert TAKEN_FOR_GRADIENT in found.flags
    assert TAKEN_FOR_GRADIENT not in plain.flags


def test_numbered_arrays_stand_for_the_order_of_the_state(tmp_path: Path) -> None:
    net, (images, labels) = perceptron(), smooth(1)
    gradient = gradient_of(net, images, labels)
    state = {str(i): value.detach() for i, value in enumerate(net.state_dict().values())}
    after = {str(i): v.detach() - 0.25 * gradient[n] for i, (n, v) in enumerate(net.state_dict().items())}
    Recorder(tmp_path / "made", party="server", source="a test").note(1, [Exchange("client:0", state, after, 1)])
    found = lb.attack("analytic", model=net, transcript=tmp_path / "made", learning_rate=0.25, shape=SHAPE)
    assert float(psnr(found.images, images)) > 40


def test_a_recording_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = perceptron()
    recording(tmp_path / "made", net, dict(net.state_dict()))
    with pytest.raises(lb.UserError, match="holds a recording already"):
        Recorder(tmp_path / "made", party="server", source="a test")
    recorder = Recorder(tmp_path / "made", party="server", source="a test", more=True)

    def broken(*given: Any, **named: Any) -> str:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", broken)
        with pytest.raises(OSError, match="full"):
            recorder.note(3, [Exchange("client:7", dict(net.state_dict()), None)])
    assert len(lb.load_view(tmp_path / "made").observations) == 2
    assert sorted(path.name for path in (tmp_path / "made" / "rounds").iterdir()) == ["000001", "000002"]
    (tmp_path / "made" / "rounds" / "000001" / "transcript.json").write_text("[")
    with pytest.raises(lb.UserError, match="damaged"):
        lb.load_view(tmp_path / "made")


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
