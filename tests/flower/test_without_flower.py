"""`leakboard.flower` where Flower is not installed."""

from __future__ import annotations

import sys

import pytest

from leakboard.core.errors import UserError
from leakboard.flower import recorded, recording_mod


def test_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    expected = r"needs `flwr` .*pip install 'leakboard\[flower\]'"
    with pytest.raises(UserError, match=expected):
        recorded(None, "x")
    with pytest.raises(UserError, match=expected):
        recording_mod("x")
