"""Tests run on one thread, as attacks do; shadow models that they train are not kept in the checkout's cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakboard.attacks.membership.building_blocks import shadows as _shadows

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def shadow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_shadows, "FOLDER", tmp_path / "shadows")
    return tmp_path / "shadows"
