from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.federation.models.base import Model
from leakboard.federation.models.module import Module

FAMILIES: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [8]},
    "convnet": {"width": 4},
    "resnet8": {"width": 4},
    "resnet11": {"width": 4},
}
FAMILIES |= {"resnet20": {"width": 4}, "resnet56": {"width": 2}}


def build(name: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, **parameters: object) -> nn.Module:
    return cast(Model, registry.create("model", name, parameters)).build(shape, classes)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_every_model_is_tested_here() -> None:
    assert set(registry.entries("model")) == {*FAMILIES, "module"}


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("resnet20", 10, 270_896),  # counted by hand from the layers
        ("resnet56", 100, 857_264),  # counted by hand from the layers
        # by hand: 3x3 convolutions 27w + (2 + 6 + 24) 9w^2, projections (2 + 8) w^2, linear 4wC; w = 16
        ("resnet8", 10, 27 * 16 + (2 + 6 + 24) * 9 * 256 + (2 + 8) * 256 + 640),
        ("mlp", 10, 3072 * 256 + 256 * 128 + 128 * 10),
        ("convnet", 10, 3 * 16 * 9 + 16 * 32 * 9 + 32 * 32 * 9 + 32 * 64 * 10),
    ],
)
def test_parameter_counts(name: str, classes: int, expected: int) -> None:
    assert count(build(name, classes=classes)) == expected


@pytest.mark.parametrize(("name", "layers"), [("resnet8", 8), ("resnet11", 11), ("resnet20", 20), ("resnet56", 56)])
def test_a_resnet_has_as_many_layers_as_it_says(name: str, layers: int) -> None:
    network = build(name)
    weighted = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    in_shortcuts = [m for n, m in network.named_modules() if "shortcut" in n and isinstance(m, nn.Conv2d)]
    assert len(weighted) - len(in_shortcuts) == layers


@pytest.mark.parametrize(
    ("name", "norm", "bias"),
    [c for c in itertools.product(FAMILIES, ["none", "batch"], [False, True]) if c[:2] != ("mlp", "batch")],
)
def test_shapes_norms_and_biases(name: str, norm: str, bias: bool) -> None:
    network = build(name, (3, 16, 16), 7, norm=norm, bias=bias, **FAMILIES[name])
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 7)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    convolutions = [m for m in layers if isinstance(m, nn.Conv2d)]
    assert len(norms) == (len(convolutions) if norm == "batch" else 0)
    assert all((m.bias is not None) == bias for m in layers)
    assert bool(list(network.buffers())) == (norm == "batch")


@pytest.mark.parametrize("name", FAMILIES)
def test_no_bias_and_no_norm_by_default(name: str) -> None:
    network = build(name, (1, 8, 8), 3, **FAMILIES[name])
    assert all("bias" not in parameter for parameter, _ in network.named_parameters())
    assert list(network.buffers()) == []
    assert network(torch.zeros(2, 1, 8, 8)).abs().max() == 0  # what a network without biases makes of nothing


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13), (2, 5, 6), (3, 28, 28)])
@pytest.mark.parametrize("name", ["mlp", "convnet", "resnet8", "resnet11"])
def test_any_size_of_image(name: str, shape: tuple[int, int, int]) -> None:
    assert build(name, shape, 4, **FAMILIES[name])(torch.rand(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_matters(name: str) -> None:
    torch.manual_seed(0)
    network = build(name, (3, 16, 16), 3, **FAMILIES[name])
    network(torch.rand(4, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_mlp_refuses_batch_norm() -> None:
    with pytest.raises(UserError, match="norm must be 'none'; given: 'batch'"):
        build("mlp", norm="batch")


# --- module:FILE.py:Class -------------------------------------------------------------------------

OWN = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Config:
    width: int = 3

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    def forward(self, x):
        return self.layer(x.flatten(1))

class Normed(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.BatchNorm2d(shape[0]), nn.Flatten(), nn.LazyLinear(classes))

class Wrong(Net):
    def forward(self, x):
        return self.layer(x.flatten(1))[:, :-1]

class Many(Net):
    def forward(self, x):
        return self.layer(x.flatten(1)), x

class Stuck(Net):
    def forward(self, x):
        raise RuntimeError("stuck")

class NoArguments(nn.Module):
    pass

def function(shape, classes):
    return lambda x: torch.zeros(2, classes)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"module:{tmp_path / 'own.py'}"


def test_a_module_of_ones_own(own: str) -> None:
    model = cast(Model, registry.create("model", f"{own}:Net"))
    network = model.build((1, 8, 8), 3)
    assert network.training
    assert network(torch.zeros(5, 1, 8, 8)).shape == (5, 3)


def test_the_trial_leaves_no_trace_in_the_buffers(own: str) -> None:
    network = cast(Model, registry.create("model", f"{own}:Normed")).build((1, 8, 8), 3)
    buffers = dict(network.named_buffers())
    assert buffers["0.num_batches_tracked"].item() == 0
    assert buffers["0.running_var"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wrong", "must map (N, 1, 8, 8) to (N, 3); given: (2, 2)."),
        ("Many", "must map (N, 1, 8, 8) to (N, 3); given: tuple."),
        ("Stuck", "cannot be used: RuntimeError: stuck."),
        ("Absent", "cannot be used: AttributeError: "),
        ("NoArguments", "cannot be used: TypeError: "),
        ("function", "cannot be used: TypeError: function is not an nn.Module."),
    ],
)
def test_a_wrong_module_is_one_sentence(own: str, name: str, message: str) -> None:
    model = cast(Model, registry.create("model", f"{own}:{name}"))
    with pytest.raises(UserError) as caught:
        model.build((1, 8, 8), 3)
    assert message in str(caught.value)
    assert f"{own}:{name}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["absent.py:Net", "Net", "{tmp}/own.txt:Net", "{tmp}:Net"])
def test_a_file_that_is_not_there_or_not_python(tmp_path: Path, target: str) -> None:
    (tmp_path / "own.txt").write_text(OWN)
    model = cast(Model, registry.create("model", "module:" + target.format(tmp=tmp_path)))
    with pytest.raises(UserError, match=r"give module:FILE\.py:Class\."):
        model.build((1, 8, 8), 3)


def test_a_changed_file_changes_the_identity_and_its_place_does_not(tmp_path: Path) -> None:
    identities = []
    for folder, text in (("a", OWN), ("b", OWN), ("c", OWN + "# changed\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(text)
        identities.append(Module(target=f"{tmp_path / folder / 'own.py'}:Net").pinned().identity())
    assert identities[0] == identities[1] != identities[2]
