"""The example of docs/foreign-updates.md runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import leakboard as lb
from leakboard.core.registry import ROOT

TEXT = (ROOT / "docs" / "foreign-updates.md").read_text()


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)[0]
    (promised,) = re.findall(r"print\(.*  # (.*)", code)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.strip() == promised
    assert (tmp_path / "found.png").is_file()


def test_the_table_names_attacks_that_there_are() -> None:
    table = TEXT[TEXT.index("## What applies") : TEXT.index("What cannot be attacked")]
    named = set(re.findall(r"`([a-z-]+)`", table)) - {"auxiliary", "known"}
    assert len(named) > 12
    assert named <= {attack["name"] for attack in lb.plugins("attacks")}
