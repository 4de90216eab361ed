"""The written-out passes give what plain automatic differentiation gives, in float64 to 1e-10."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakboard.attacks.base import Inversion
from leakboard.attacks.reconstruction.matching.descent import _roughness
from leakboard.attacks.reconstruction.matching.gradients import Matcher, total_variation
from leakboard.attacks.reconstruction.matching.program import program_of
from leakboard.defenses.base import Gradient
from leakboard.federation.models.base import Residual
from leakboard.federation.task import Task
from tests.attacks.test_matching import made, reference, task_for


def _wide() -> nn.Module:
    """Enough channels for products of unfolded images, with a bias, a projection and pooling."""
    body = nn.Sequential(nn.Conv2d(64, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, 1))
    block = Residual(body, nn.Conv2d(64, 6, 1, 2))
    start = (nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.ReLU())
    return nn.Sequential(*start, block, nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5))


def _bent() -> nn.Module:
    """Activations with a second derivative, and one after the other."""
    start = (nn.Conv2d(3, 4, 5, padding=2), nn.Sigmoid(), nn.Conv2d(4, 4, 3, 2), nn.Tanh(), nn.SiLU())
    return nn.Sequential(*start, nn.Flatten(), nn.Linear(196, 7), nn.LeakyReLU(), nn.Linear(7, 5))


def task_with(network: nn.Module, loss: str = "ce") -> Task:
    """A task whose network is this one."""
    task = Task(task_for("mlp", {"hidden": [12]}, loss).public)
    task._network = network
    task.parameter_names = tuple(name for name, _ in network.named_parameters())
    return task


def problems_on(task: Task, count: int, records: int) -> tuple[tuple[Inversion, ...], Tensor, Tensor]:
    """Problems on the task's own weights with random gradients, labels (P, M) and candidates (P, M, C, H, W)."""
    _, labels, images = made(task_for("mlp", {"hidden": [12]}), count, records)
    weights = {name: value.detach() for name, value in task.skeleton().named_parameters()}
    sent = [{name: torch.randn_like(value) for name, value in weights.items()} for _ in range(count)]
    return tuple(Inversion(weights, Gradient(values, 1, records), None) for values in sent), labels, images


@pytest.mark.parametrize("build", [_wide, _bent])
@pytest.mark.parametrize(("count", "records"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_slopes_are_those_of_automatic_differentiation(build: object, count: int, records: int) -> None:
    torch.manual_seed(3)
    task = task_with(build())  # type: ignore[operator]
    problems, labels, images = problems_on(task, count, records)
    matcher = Matcher(task, problems, labels, 1, "cpu", dtype=torch.float64)
    assert matcher.grouped
    costs, slopes = matcher.slopes(images.double())
    wanted_costs, wanted = reference(task, problems, labels, images)
    assert float((costs - wanted_costs).abs().max()) < 1e-10
    assert float((slopes - wanted).norm()) < 1e-10 * float(wanted.norm())


def test_problems_on_models_of_their_own_take_the_passes_one_by_one() -> None:
    task = task_for("convnet", {"width": 3}, "ce")
    problems, labels, images = made(task, 3, 2, models=3)
    matcher = Matcher(task, problems, labels, 1, "cpu", dtype=torch.float64)
    assert not matcher.grouped
    assert matcher.program is not None
    wanted = reference(task, problems, labels, images)[1]
    assert float((matcher.slopes(images.double())[1] - wanted).norm()) < 1e-10 * float(wanted.norm())


def test_a_layer_that_is_used_twice_has_no_program() -> None:
    layer = nn.Linear(4, 4)
    assert program_of(nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 4)), (4,)) is not None
    assert program_of(nn.Sequential(layer, nn.ReLU(), layer), (4,)) is None
    assert program_of(nn.Sequential(layer, nn.Dropout()), (4,)) is None
    assert program_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (3, 8, 8)) is None


def test_the_written_out_slope_of_the_total_variation() -> None:
    x = torch.rand(3, 2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (wanted,) = torch.autograd.grad(total_variation(x).sum(), x)
    value, slope = _roughness(x.detach())
    assert torch.equal(value, total_variation(x.detach()))
    assert torch.allclose(slope, wanted, rtol=0, atol=1e-15)


class _Again(nn.Module):
    """Uses its input again after a ReLU has changed it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to the same."""
        hidden: Tensor = self.layer(x)
        return torch.nn.functional.relu(hidden, inplace=True) + hidden


class _Broadcast(_Again):
    """Adds tensors of two shapes."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to the same."""
        hidden: Tensor = self.layer(x)
        return hidden + hidden.mean((2, 3), keepdim=True)


@pytest.mark.parametrize(
    "network",
    [
        _Again(),
        _Broadcast(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.Linear(36, 2)),
    ],
    ids=["in place", "broadcast", "in place, a layer", "several rows"],
)
def test_what_the_passes_cannot_do_has_no_program(network: nn.Module) -> None:
    assert program_of(network, (3, 8, 8)) is None


@pytest.mark.parametrize("shape", [(2, 1, 1, 1, 5), (2, 1, 1, 5, 1), (2, 1, 1, 1, 1)])
def test_a_side_of_one_pixel_has_no_roughness(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value, slope = _roughness(x.detach())
    expected = total_variation(x)
    assert torch.equal(value, expected.detach())
    assert value.isfinite().all()
    if max(shape[-2:]) > 1:
        (wanted,) = torch.autograd.grad(expected.sum(), x)
        assert torch.allclose(slope, wanted)
    else:
        assert not slope.any()
