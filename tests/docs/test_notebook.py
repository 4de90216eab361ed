"""The notebook page's code runs on a run that is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from leakboard.core.registry import ROOT
from leakboard.leaderboard.cli.main import main

SUITE = """
name: quick
datasets: [digits]
model: {name: mlp, params: {hidden: [8]}}
training: {rounds: 2, batch_size: 8, clients: 3, learning_rate: 0.02}
observe: {rounds: [first], targets: 2}
defenses: [fedsgd, mp-dp]
attacks:
  - {name: prior, threats: [server]}
"""


@pytest.mark.slow
def test_the_page_s_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = tmp_path / "quick.yaml"
    suite.write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--suite", str(suite), "--workers", "2"]) == 0
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "notebook.md").read_text(), flags=re.S)
    place: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace('"0.weight"', "next(iter(reading.gradients['client:0'].values))"), place)
    assert place["view"].parties == ("server",)
    assert {"gradient", "psi", "phi"} <= set(place["message"].payload)
    assert float(place["reading"].gradients["client:0"].values.popitem()[1].norm()) > 0
