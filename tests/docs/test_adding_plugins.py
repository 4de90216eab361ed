"""The two documents about adding a plugin do what they say: one file of at most 60 lines, no edit elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from core.registry import ROOT
from leaderboard.cli import main
from leaderboard.store import open_run

SUITE = """
name: tiny
datasets: [digits]
model: {name: mlp, params: {hidden: [8]}}
training: {rounds: 3, batch_size: 8, clients: 3, learning_rate: 0.02}
observe: {rounds: [first], targets: 2}
defenses: [fedavg]
attacks:
  - {name: prior, threats: [server]}
  - {name: loss-threshold, threats: [client]}
"""


def code_of(document: str) -> str:
    """The document's one Python block."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / document).read_text(), flags=re.S)
    assert len(blocks) == 1
    return str(blocks[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "kind", "name"),
    [
        ("adding-a-defense.md", "defense", "noisy-gradient"),
        ("adding-an-attack.md", "attack", "gradient-lookup"),
    ],
)
def test_the_document_s_code_runs_as_a_plugin(document: str, kind: str, name: str, tmp_path: Path) -> None:
    code = code_of(document)
    assert len(code.splitlines()) <= 60
    plugin, suite, out = tmp_path / "plugin.py", tmp_path / "tiny.yaml", tmp_path / "run"
    plugin.write_text(code)
    suite.write_text(SUITE)

    status = main(["run", "--suite", str(suite), "--plugin", str(plugin), "--out", str(out), "--workers", "2"])

    assert status == 0
    records = open_run(out).records
    mine = [r for r in records if (r.cell.training.defense if kind == "defense" else r.cell.attack).name == name]
    assert mine
    assert {record.status for record in records} == {"ok"}
    assert (out / "report" / "index.html").is_file()


def test_the_documents_name_only_what_exists() -> None:
    """Methods that the documents tell people to override or use are there."""
    from attacks.base import Attack, Knowledge, ReconstructionTask
    from defenses.base import Defense
    from federation.party import Party

    named = re.findall(r"`(\w+)\(", (ROOT / "docs" / "adding-a-defense.md").read_text())
    for method in named:
        assert hasattr(Defense, method) or hasattr(Party, method), method
    attack = (ROOT / "docs" / "adding-an-attack.md").read_text()
    for owner, method in re.findall(r"`(knowledge|task)\.(\w+)\(", attack):
        assert hasattr(Knowledge if owner == "knowledge" else ReconstructionTask, method), method
    assert {"budget", "work"} <= set(dir(Attack))
