"""The documents about what is public name only what exists, and every building block."""

from __future__ import annotations

import importlib
import re

import pytest
import torch

from leakboard.contract.worlds import make_world
from leakboard.core.registry import ROOT
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.task import task_of

BLOCKS = (
    "defenses/building_blocks",
    "defenses/noise",
    "defenses/perturbation",
    "defenses/crypto",
    "attacks/building_blocks",
    "attacks/*/building_blocks",
    "attacks/reconstruction/matching",
    "attacks/reconstruction/closed_form",
    "attacks/reconstruction/perturbation",
    "attacks/reconstruction/regression",
    "datasets/building_blocks",
    "metrics/building_blocks",
)


def text_of(document: str) -> str:
    return (ROOT / "docs" / document).read_text()


def promised() -> list[tuple[str, str]]:
    """Module and name of everything in the table of stability.md that is in a module."""
    rows = [row for row in text_of("stability.md").splitlines() if row.startswith("|")]
    pairs = []
    for row in rows:
        modules = re.findall(r"`(leakboard(?:\.\w+)+)`:((?:,? `\w+`)+)", row)
        pairs += [(module, name) for module, names in modules for name in re.findall(r"`(\w+)`", names)]
    return pairs


def blocks() -> dict[str, str]:
    """Module -> what the document says that it gives."""
    found, package = {}, ""
    for line in text_of("building-blocks.md").splitlines():
        if line.startswith("## "):
            (package,) = re.findall(r"`([\w.]+)`", line)
        elif row := re.match(r"\| `([\w.]+)` \| (.*?) \|", line):
            found[f"{package}.{row[1]}"] = row[2]
    return found


def test_the_table_of_public_names_is_read() -> None:
    assert ("leakboard.defenses.base", "Defense") in promised()
    assert ("leakboard.contract", "check_plugin") in promised()
    assert len(promised()) > 50


@pytest.mark.parametrize(("module", "name"), promised())
def test_a_public_name_exists(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_every_building_block_is_in_the_document() -> None:
    files = [file for pattern in BLOCKS for file in ROOT.glob(f"{pattern}/*.py") if file.name != "__init__.py"]
    modules = {".".join(("leakboard", *file.relative_to(ROOT).with_suffix("").parts)) for file in files}
    assert len(modules) > 40
    assert set(blocks()) == modules


@pytest.mark.parametrize(("module", "gives"), blocks().items())
def test_a_building_block_says_what_it_gives(module: str, gives: str) -> None:
    found = importlib.import_module(module)
    assert (found.__doc__ or "").split("\n", 1)[0].rstrip().endswith(".")
    names = re.findall(r"`(\w+)`", gives)
    for name in names if module != "leakboard.attacks.reconstruction.perturbation.phi_matching" else names[1:]:
        assert hasattr(found, name), name


def test_the_differentiable_gradient_is_a_client_s_and_leads_to_the_image() -> None:
    blocks = re.findall(r"```python\n(.*?)```", text_of("adding-an-attack.md"), flags=re.S)
    (code,) = (block for block in blocks if "def candidate_gradient" in block)
    shown: dict[str, object] = {}
    exec(code, shown)
    gradient, cost = shown["candidate_gradient"], shown["matching_cost"]
    assert callable(gradient)
    assert callable(cost)
    settings: dict[str, dict[str, object]] = {"mlp": {}, "resnet8": {"norm": "batch"}}
    for model, parameters in settings.items():
        world = make_world(FedSGD(), model=model, model_parameters=parameters, rounds=1, targets=1)
        task, batch = task_of(world.outcome.public), world.unseen.select(torch.arange(2))
        images = batch.images.clone().requires_grad_()
        expected, _ = task.gradient(world.outcome.model, batch.images, batch.labels)
        found = gradient(task, world.outcome.model, images, batch.labels)
        assert all(torch.allclose(found[name], value, atol=1e-5) for name, value in expected.items())
        other = {name: torch.randn_like(value) for name, value in expected.items()}
        (slope,) = torch.autograd.grad(cost(task, world.outcome.model, other, images, batch.labels), images)
        assert bool(slope.any())
