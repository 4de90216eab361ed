from __future__ import annotations

import pytest
import torch

from leakboard.core import vision
from tests.core.helpers import in_fresh_process


def test_torchvision_imports_and_works() -> None:
    torchvision = vision.torchvision()
    assert torchvision is vision.torchvision()
    assert torchvision.models.AlexNet(num_classes=3)(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    assert hasattr(vision.torchvision_datasets(), "CIFAR10")


def test_lpips_imports() -> None:
    assert hasattr(vision.lpips(), "LPIPS")


def test_where_torchvision_loads_by_itself_nothing_is_defined() -> None:
    found = in_fresh_process(
        "import sys, json, types\n"
        "fake = sys.modules['torchvision'] = types.ModuleType('torchvision')\n"
        "from leakboard.core import vision\n"
        "import torch\n"
        "same = vision.torchvision() is fake\n"
        "print(json.dumps([same, vision._library is None, hasattr(torch.ops.torchvision, 'nms')]))"
    )
    assert found == [True, True, False]


def test_another_failure_of_torchvision_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("leakboard.core.vision.importlib.import_module", fail)
    vision.torchvision.cache_clear()
    with pytest.raises(RuntimeError, match="out of luck"):
        vision.torchvision()
