"""Tests run on one thread, as attacks do; shadow models that they train are not kept in the checkout's cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakboard.attacks.membership.building_blocks import shadows as _shadows
from tests.contract.worlds import CHECKED

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `check`: only the tests of a plugin, not those of the contract itself or of kinds that the file lacks."""
    if CHECKED:
        items[:] = [item for item in items if _of_a_plugin(item)]


def _of_a_plugin(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and bool({"name", "world"} & set(call.params)) and item.get_closest_marker("skip") is None


@pytest.fixture(autouse=True)
def shadow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_shadows, "FOLDER", tmp_path / "shadows")
    return tmp_path / "shadows"
