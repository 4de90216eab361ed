"""Shadow models that tests train are not kept in the checkout's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.attacks.membership.building_blocks import shadows as _shadows


@pytest.fixture(autouse=True)
def shadow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_shadows, "FOLDER", tmp_path / "shadows")
    return tmp_path / "shadows"
