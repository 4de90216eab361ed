"""Stored values are read with no more memory than their files have bytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from leakboard.federation.value_files import Damaged, load_value, read_about, save_value


def test_the_limit_is_not_allocated(tmp_path: Path) -> None:
    save_value(tmp_path, {"a": [1, "b"]}, {})
    assert load_value(tmp_path, most=2**62) == {"a": [1, "b"]}  # no machine has so much memory


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_value(tmp_path, {}, {})
    size = (tmp_path / "about.json").stat().st_size
    monkeypatch.setattr(Path, "stat", lambda path, **options: SimpleNamespace(st_size=size - 1))
    with pytest.raises(Damaged, match=rf"about\.json has more bytes than the {size - 1} that it had before"):
        read_about(tmp_path)
