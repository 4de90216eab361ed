"""Layers that model perturbation does not support are refused by name, and never computed wrongly in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leakboard.core.errors import Unsupported, UserError
from leakboard.defenses.perturbation.wiring import wiring_of
from leakboard.federation.models.base import Residual
from leakboard.federation.task import task_of
from tests.defenses import networks
from tests.defenses.makings import create, public_of

CUSTOM = str(Path(__file__).with_name("networks.py"))
SCHEMES = ("mp", "mp-dp", "mp-ldp", "mp-cdp", "mp-dp-naive")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("two_linear", "a ReLU between 1 and 2"),
        ("tied", r"used twice \(5\)"),
        ("sigmoid", r"cannot pass through Sigmoid \(2\)"),
        ("grouped", r"grouped convolutions \(2\)"),
        ("pooled_shortcut", r"as the shortcut 2\.shortcut"),
        ("active_body", r"at the end of 2\.body"),
        ("flattened_before_relu", "a ReLU between 0 and the flattening 1"),
        ("own_forward", "cannot pass through Backwards"),
        ("ends_in_relu", "ends in one linear layer"),
    ],
)
def test_networks_that_cannot_be_perturbed_are_refused_with_the_place(name: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        wiring_of(getattr(networks, name)((2, 8, 8), 4))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_batch_norm_is_refused(scheme: str) -> None:
    with pytest.raises(Unsupported, match="cannot pass through BatchNorm2d"):
        create(scheme).check(public_of("convnet", {"norm": "batch"}))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cross_entropy_is_refused(scheme: str) -> None:
    with pytest.raises(UserError, match=f"'{scheme}' needs loss 'mse'.*given: 'ce'"):
        create(scheme).check(public_of(loss="ce"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("model", "parameters"),
    [("mlp", {}), ("resnet20", {"bias": True}), ("module", {"target": f"{CUSTOM}:pooled"})],
)
def test_what_can_be_perturbed_passes_the_check(scheme: str, model: str, parameters: dict[str, Any]) -> None:
    create(scheme).check(public_of(model, parameters))


def test_the_wiring_of_a_resnet() -> None:
    """ResNet8: ten weights (two projections), one identity skip, seven ReLUs; every weight between its ReLUs."""
    network = task_of(public_of("resnet8", {"width": 2})).skeleton()
    wiring = wiring_of(network)
    blocks = [path for path, module in network.named_modules() if isinstance(module, Residual)]
    assert len(wiring.relus) == 1 + 2 * len(blocks)
    assert [skip.path for skip in wiring.skips] == [f"{blocks[0]}.shortcut"]
    assert len(wiring.weights) == 10
    ends = {w.name: (w.source, w.target) for w in wiring.weights}
    assert ends["0"] == (None, 0)
    assert ends[f"{blocks[1]}.shortcut"] == (2, 4)  # from the end of block 1 to the sum of block 2
    assert wiring.last.source == len(wiring.relus) - 1
    assert wiring.channels == (2, 2, 2, 4, 4, 8, 8)
