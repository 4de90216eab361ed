"""Every way to the matching cost gives what plain automatic differentiation in float64 gives."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leakboard.attacks.base import Inversion
from leakboard.attacks.building_blocks.candidate_transform import CandidateTransform
from leakboard.attacks.reconstruction.matching import gradients as _matching
from leakboard.attacks.reconstruction.matching.gradients import Matcher
from leakboard.attacks.reconstruction.matching.grouped import grouped_gradients
from leakboard.attacks.reconstruction.matching.program import can_group
from leakboard.attacks.reconstruction.matching.traced import WARM_UP, recording
from leakboard.defenses.base import Gradient
from leakboard.defenses.noise.budget import clipping
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public, Training
from leakboard.federation.task import Task, task_of

#: networks that the grouped way takes: plain, biased, residual with strided 1x1 projections, fully connected
NETWORKS: list[tuple[str, dict[str, object]]] = [
    ("convnet", {"width": 3}),
    ("convnet", {"width": 3, "bias": True}),
    ("resnet8", {"width": 4}),
    ("mlp", {"hidden": [12], "bias": True}),
]


def task_for(model: str, parameters: dict[str, object], loss: str = "mse") -> Task:
    return task_of(
        Public(
            defense="fedsgd",
            parameters={},
            model=model,
            model_parameters=parameters,
            shape=(3, 16, 16),
            classes=5,
            mean=(0.4, 0.5, 0.6),
            std=(0.2, 0.25, 0.3),
            training=Training(rounds=1, batch_size=4, loss=loss),
            total_rounds=1,
            shard_sizes=(4,),
        )
    )


def made(task: Task, problems: int, records: int, models: int = 1) -> tuple[tuple[Inversion, ...], Tensor, Tensor]:
    """Problems with random records, their labels (P, M), and candidate images (P, M, C, H, W)."""
    generator = torch.Generator().manual_seed(7)
    images = torch.rand(2, problems, records, *task.public.shape, generator=generator)
    labels = torch.randint(5, (problems, records), generator=generator)
    weights = [task.initial(seed) for seed in range(models)]
    found = []
    for i in range(problems):
        gradient, _ = task.gradient(weights[i % models], images[0, i], labels[i])
        found.append(Inversion(weights[i % models], Gradient(gradient, 1, records), None))
    return tuple(found), labels, images[1]


def reference(task: Task, problems: tuple[Inversion, ...], labels: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Costs and their image gradients, problem by problem in float64, written down plainly."""
    costs, slopes = [], []
    for problem, target, image in zip(problems, labels, images, strict=True):
        x = image.double().requires_grad_()
        weights = {n: v.double().requires_grad_() if n in task.parameter_names else v.double().clone()
                   if v.is_floating_point() else v.clone() for n, v in problem.model.items()}  # fmt: skip
        loss = task.loss(task.logits(weights, x, train=True), target)
        found = torch.autograd.grad(loss, [weights[n] for n in task.parameter_names], create_graph=True)
        mine = torch.cat([g.flatten() for g in found])
        theirs = torch.cat([problem.gradient.values[n].double().flatten() for n in task.parameter_names])
        cost = 1 - mine @ theirs / (mine.norm() * theirs.norm())
        costs.append(cost.detach())
        slopes += torch.autograd.grad(cost, x)
    return torch.stack(costs), torch.stack(slopes)


def agrees(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> bool:
    """Costs to 1e-6, image gradients to 1e-5 of their size."""
    costs = bool((found[0].double() - wanted[0]).abs().max() < 1e-6)
    return costs and bool((found[1].double() - wanted[1]).norm() < 1e-5 * wanted[1].norm())


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize(("model", "parameters"), NETWORKS)
def test_grouped_costs_are_those_of_plain_float64(
    model: str, parameters: dict[str, object], records: int, loss: str
) -> None:
    task = task_for(model, parameters, loss)
    problems, labels, images = made(task, 3, records)
    matcher = Matcher(task, problems, labels, 1, "cpu")
    assert matcher.grouped
    assert agrees(matcher.slopes(images), reference(task, problems, labels, images))


@pytest.mark.parametrize(("model", "parameters"), NETWORKS)
def test_mapped_costs_are_those_of_plain_float64(model: str, parameters: dict[str, object]) -> None:
    """The way for any network, on one model and on a model for each problem."""
    task = task_for(model, parameters)
    for models in (1, 3):
        problems, labels, images = made(task, 3, 2, models)
        matcher = Matcher(task, problems, labels, 1, "cpu")
        assert matcher.shared == (models == 1)
        assert matcher.grouped == (matcher.shared or model == "mlp")
        matcher.grouped = False
        assert agrees(matcher.slopes(images), reference(task, problems, labels, images))


@pytest.mark.parametrize(("model", "parameters"), NETWORKS)
def test_problems_with_linear_layers_of_their_own_are_grouped_too(model: str, parameters: dict[str, object]) -> None:
    """Another last layer for each problem, of another number of outputs than the network's, with targets for each."""
    task = task_for(model, parameters)
    problems, _, images = made(task, 3, 2)
    last = [name for name in task.parameter_names if name.endswith("weight")][-1]
    generator = torch.Generator().manual_seed(5)
    shape = (2, problems[0].model[last].shape[1])
    own = [{**p.model, last: torch.randn(shape, generator=generator)} for p in problems]
    bias = last.removesuffix("weight") + "bias"
    if bias in task.parameter_names:
        own = [{**m, bias: torch.randn(2, generator=generator)} for m in own]
    targets = torch.rand(3, 2, 2, generator=generator)
    found = []
    for model_, x, y in zip(own, images, targets, strict=True):
        gradient, _ = task.gradient(model_, x + 0.1, y)
        found.append(Inversion(model_, Gradient(gradient, 1, 2), None))
    matcher = Matcher(task, tuple(found), targets, 1, "cpu")
    assert matcher.grouped
    assert not matcher.shared
    together = matcher.slopes(images)
    matcher.grouped = False
    assert agrees(together, tuple(part.double() for part in matcher.slopes(images)))  # type: ignore[arg-type]


def test_one_problem_alone_and_batch_norm_are_those_of_plain_float64() -> None:
    cases: list[tuple[dict[str, object], int]] = [({"width": 3}, 1), ({"width": 3, "norm": "batch"}, 2)]
    for parameters, count in cases:
        task = task_for("convnet", parameters)
        problems, labels, images = made(task, count, 4)
        matcher = Matcher(task, problems, labels, 1, "cpu")
        assert agrees(matcher.slopes(images), reference(task, problems, labels, images))


def test_working_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_for("convnet", {"width": 3})
    for models in (1, 5):
        problems, labels, images = made(task, 5, 2, models)
        matcher = Matcher(task, problems, labels, 1, "cpu")
        whole = matcher.slopes(images)
        with monkeypatch.context() as patch:
            patch.setattr(_matching, "IMAGES_AT_ONCE", 5)
            patch.setattr(_matching, "HELD", 10**9)
            assert matcher._at_once(2) == 2
            parts = matcher.slopes(images)
        assert agrees(parts, (whole[0].double(), whole[1].double()))


def test_costs_are_differentiable_as_slopes_say_and_need_no_gradient_mode() -> None:
    task = task_for("resnet8", {"width": 4})
    problems, labels, images = made(task, 3, 1)
    matcher = Matcher(task, problems, labels, 1, "cpu")
    x = images.clone().requires_grad_()
    costs = matcher.costs(x)
    (slope,) = torch.autograd.grad(costs.sum(), x)
    assert agrees((costs.detach(), slope), tuple(t.double() for t in matcher.slopes(images)))  # type: ignore[arg-type]
    with torch.no_grad():
        quiet = matcher.costs(images)
    assert not quiet.requires_grad
    assert torch.equal(quiet, costs.detach())


class _Mixing(nn.Module):
    """A network whose records see each other: their mean is taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(768, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(x - x.mean(0, keepdim=True))  # type: ignore[no-any-return]


class _ByHand(nn.Module):
    """A network that uses a layer's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(768, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.last.weight.mT


@pytest.mark.parametrize("network", [_Mixing, _ByHand])
def test_networks_that_cannot_be_grouped_take_the_other_way(network: Callable[[], nn.Module]) -> None:
    task = Task(task_for("mlp", {"hidden": [12]}).public)
    task._network = network()
    task.parameter_names = ("last.weight",)
    weights = {"last.weight": torch.randn(5, 768, generator=torch.Generator().manual_seed(1)) / 28}
    problems, labels, images = made(task_for("mlp", {"hidden": [12]}), 3, 2)
    problems = tuple(Inversion(weights, Gradient({"last.weight": torch.randn(5, 768)}, 1, 2), None) for _ in problems)
    assert can_group(task.skeleton())
    matcher = Matcher(task, problems, labels, 1, "cpu")
    assert not matcher.grouped
    assert agrees(matcher.slopes(images), reference(task, problems, labels, images))


def test_layers_of_other_kinds_are_not_grouped() -> None:
    assert not can_group(nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)))
    assert not can_group(nn.Sequential(nn.Conv2d(2, 2, 3, padding_mode="circular", padding=1)))
    assert not can_group(nn.Sequential(nn.Conv2d(2, 2, 3, padding="same")))
    assert not can_group(nn.Sequential(nn.GroupNorm(1, 2)))
    assert not can_group(nn.Sequential(nn.BatchNorm2d(2)))
    assert can_group(nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2), nn.ReLU(), nn.Linear(2, 2)))


def test_dilated_convolutions_are_grouped_rightly() -> None:
    task = Task(task_for("convnet", {"width": 3}).public)
    task._network = nn.Sequential(nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False),
                                  nn.Tanh(), nn.Flatten(), nn.Linear(4 * 8 * 14, 5))  # fmt: skip
    task.parameter_names = tuple(name for name, _ in task._network.named_parameters())
    weights = {name: value.detach() for name, value in task._network.named_parameters()}
    _, labels, images = made(task_for("mlp", {"hidden": [12]}), 3, 2)
    soft = torch.nn.functional.one_hot(labels, 5).float()
    found = grouped_gradients(task, weights, images, soft)
    for i in range(3):
        wanted, _ = task.gradient(weights, images[i], labels[i])
        for name, stack in zip(task.parameter_names, found, strict=True):
            assert torch.allclose(stack[i], wanted[name], atol=1e-5)


def test_an_imitation_is_applied_to_its_own_problem_alone() -> None:
    """Half of the problems are pruned where the observed gradient is zero: the truth costs nothing only if imitated."""
    task = task_for("convnet", {"width": 3})
    problems, labels, _ = made(task, 2, 1)
    images = torch.rand(2, 2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(7))[0]
    masks = {n: (g.abs() > g.abs().median()).float() for n, g in problems[1].gradient.values.items()}

    def prune(gradient: Parameters) -> Parameters:
        return {name: value * masks[name] for name, value in gradient.items()}

    pruned = Gradient(prune(problems[1].gradient.values), 1, 1)
    mixed = (problems[0], Inversion(problems[1].model, pruned, None))
    plain = Matcher(task, mixed, labels, 1, "cpu").costs(images)
    told = Matcher(task, mixed, labels, 1, "cpu", (None, CandidateTransform(1, 1, None, prune))).costs(images)
    assert float(plain[0]) == pytest.approx(0, abs=1e-5)
    assert float(told[0]) == pytest.approx(0, abs=1e-5)
    assert float(told[1]) == pytest.approx(0, abs=1e-5)
    assert float(plain[1]) > 1e-3
    assert math.isfinite(float(told.sum()))


def clipped_mean(task: Task, model: Parameters, images: Tensor, labels: Tensor, bound: float) -> Parameters:
    """1/M sum_b min(1, B / ||g_b||) g_b, record by record."""
    found: Parameters = {}
    for image, label in zip(images, labels, strict=True):
        gradient, _ = task.gradient(model, image[None], label[None])
        size = torch.cat([g.flatten() for g in gradient.values()]).norm()
        for name, g in gradient.items():
            found[name] = found.get(name, 0) + min(1.0, bound / float(size)) * g / len(images)
    return found


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("grouped", [True, False])
def test_clipping_inside_a_batch_is_imitated_on_every_way(grouped: bool, models: int) -> None:
    """The truth costs nothing, and the image gradient is that of finite differences, weights included."""
    task = task_for("convnet", {"width": 3})
    records, bound = 3, 0.7  # some are clipped, some are not
    problems, labels, images = made(task, 2, records, models)
    clipped = tuple(
        Inversion(p.model, Gradient(clipped_mean(task, p.model, x, y, bound), 1, records), None)
        for p, x, y in zip(problems, images, labels, strict=True)
    )
    imitation = CandidateTransform(1, records, clipping(bound), None)
    plain, told = (
        Matcher(task, clipped, labels, 1, "cpu", tuple(i for _ in clipped) if i else None, torch.float64)
        for i in (None, imitation)
    )
    told.grouped = told.grouped and grouped
    assert float(told.costs(images.double()).max()) < 1e-10
    assert float(plain.costs(images.double()).min()) > 1e-4
    start = images.double().roll(1, 0)
    _, slope = told.slopes(start)
    direction = torch.randn(start.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step = 1e-6 * direction
    difference = (told.costs(start + step) - told.costs(start - step)).sum() / 2e-6
    assert float((slope * direction).sum()) == pytest.approx(float(difference), rel=1e-4)


def test_imitations_that_need_different_parts_go_together() -> None:
    """One problem is clipped by record, one rounded by client, one sent as it is."""
    task = task_for("mlp", {"hidden": [12]})
    problems, labels, images = made(task, 3, 4)
    model = problems[0].model
    clients = [task.gradient(model, images[1, i : i + 2], labels[1, i : i + 2])[0] for i in (0, 2)]
    rounded = {n: torch.stack([(c[n] / 0.1).round() * 0.1 for c in clients]).mean(0) for n in clients[0]}
    sent = (
        Gradient(clipped_mean(task, model, images[0], labels[0], 1.0), 1, 4),
        Gradient(rounded, 2, 4),
        Gradient(task.gradient(model, images[2], labels[2])[0], 1, 4),
    )
    imitations = (
        CandidateTransform(1, 4, clipping(1.0), None),
        CandidateTransform(
            2, 4, None, lambda values: {n: v + ((v / 0.1).round() * 0.1 - v).detach() for n, v in values.items()}
        ),
        None,
    )
    mixed = tuple(Inversion(model, gradient, None) for gradient in sent)
    assert float(Matcher(task, mixed, labels, 1, "cpu", imitations).costs(images).abs().max()) < 1e-5
    plain = Matcher(task, mixed, labels, 1, "cpu").costs(images)
    assert float(plain[:2].min()) > 1e-3
    assert bool(
        Matcher(task, mixed, labels, 1, "cpu", imitations).slopes(1 - images)[1].abs().flatten(1).sum(1).gt(0).all()
    )


def test_a_recorded_step_serves_other_images_labels_models_and_targets() -> None:
    """What was recorded on one problem holds none of it."""
    task = task_for("convnet", {"width": 3})
    problems, labels, images = made(task, 3, 1, models=3)
    recording.cache_clear()
    first = Matcher(task, problems[:1], labels[:1], 1, "cpu")
    for _ in range(WARM_UP + 1):
        again = first.slopes(images[:1])
    recorded = recording(task, images[:1].shape, first.labels.shape, images.device, images.dtype)
    assert recorded.replay is not None
    assert agrees(again, reference(task, problems[:1], labels[:1], images[:1]))
    for i in (1, 2):
        part = slice(i, i + 1)
        other = Matcher(task, problems[part], labels[part], 1, "cpu")
        wanted = reference(task, problems[part], labels[part], images[part].flip(-1))
        assert agrees(other.slopes(images[part].flip(-1)), wanted)
    recording.cache_clear()


class _Deciding(nn.Module):
    """A network whose way depends on the values that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Parameter(torch.zeros(5, 768))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return (x if float(x.detach().mean()) > 0 else x.square()) @ self.last.mT


def test_a_network_that_decides_by_values_is_not_recorded() -> None:
    task = Task(task_for("mlp", {"hidden": [12]}).public)
    task._network = _Deciding()
    task.parameter_names = ("last",)
    generator = torch.Generator().manual_seed(1)
    weights, sent = ({"last": torch.randn(5, 768, generator=generator) / 28} for _ in range(2))
    problems = (Inversion(weights, Gradient(sent, 1, 1), None),)
    labels, images = torch.tensor([[2]]), torch.rand(1, 1, 3, 16, 16, generator=generator)
    matcher = Matcher(task, problems, labels, 1, "cpu")
    for _ in range(WARM_UP + 1):
        matcher.slopes(images)
    assert recording(task, images.shape, matcher.labels.shape, images.device, images.dtype).replay is None
    for candidates in (images, images / 10):
        assert agrees(matcher.slopes(candidates), reference(task, problems, labels, candidates))


class _Doubled(Matcher):
    """A matcher with a cost of its own."""

    def _costs(self, images: Tensor, part: slice) -> Tensor:
        return 2 * super()._costs(images, part)


def test_costs_other_than_the_cosine_are_not_taken_from_its_recording() -> None:
    task = task_for("convnet", {"width": 3})
    problems, labels, images = made(task, 1, 1)
    plain = Matcher(task, problems, labels, 1, "cpu")
    for _ in range(WARM_UP + 1):
        cost, slope = plain.slopes(images)
    doubled = _Doubled(task, problems, labels, 1, "cpu").slopes(images)
    assert torch.allclose(doubled[0], 2 * cost)
    assert torch.allclose(doubled[1], 2 * slope, rtol=1e-4, atol=1e-6 * float(slope.abs().max()))
    assert float(Matcher(task, problems, labels, 1, "cpu", size=1.0).slopes(images)[0]) > float(cost) + 1e-6
