"""The two documents about adding a plugin do what they say: one file of at most 60 lines, no edit elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.core.registry import ROOT
from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.planning.run_folder import open_run
from tests.leaderboard.runs import few_charts

pytestmark = pytest.mark.usefixtures("fork_server")

SUITE = """
name: tiny
datasets: [digits]
model: {name: mlp, params: {hidden: [8]}}
training: {rounds: 3, batch_size: 8, clients: 3, learning_rate: 0.02}
observe: {rounds: [first], targets: 2}
defenses: [fedsgd]
attacks:
  - {name: prior, threats: [server]}
  - {name: loss-threshold, threats: [client]}
"""


DOCUMENTED = [
    ("adding-a-defense.md", "defense", "noisy-gradient"),
    ("adding-an-attack.md", "attack", "gradient-lookup"),
]


def plugins_in(document: Path) -> list[str]:
    """The Python blocks of a document that are whole files with a plugin: a docstring first, and a name."""
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.S)
    return [str(block) for block in blocks if block.startswith('"""') and "    name: ClassVar[str] = " in block]


def code_of(document: str) -> str:
    """The document's one plugin."""
    (found,) = plugins_in(ROOT / "docs" / document)
    return found


@pytest.fixture(autouse=True)
def no_loaded_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test loads is gone after it."""
    monkeypatch.setattr(registry, "_loaded_files", {})


def test_no_document_has_a_plugin_that_nobody_checks() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    elsewhere = ["adding-a-goal.md", "adding-a-metric.md"]  # tests/leaderboard/goals/test_from_outside.py runs them
    found = [path.name for path in documents if plugins_in(path)]
    assert sorted(found) == sorted([*elsewhere, *(name for name, _, _ in DOCUMENTED)])


@pytest.mark.parametrize(("document", "kind", "name"), DOCUMENTED)
def test_the_document_s_plugin_keeps_the_contract(
    document: str, kind: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(code_of(document))
    assert main(["check", str(plugin)]) == 0, capfd.readouterr().out
    said = capfd.readouterr().out
    assert f"{kind} '{name}'\n  ok      " in said
    assert said.endswith("The contract holds.\n")


@pytest.mark.parametrize(("document", "kind", "name"), DOCUMENTED)
def test_the_document_s_code_runs_as_a_plugin(document: str, kind: str, name: str, tmp_path: Path) -> None:
    code = code_of(document)
    assert len(code.splitlines()) <= 60
    plugin, suite, out = tmp_path / "plugin.py", tmp_path / "tiny.yaml", tmp_path / "run"
    plugin.write_text(code)
    suite.write_text(SUITE)

    with few_charts():
        status = main(["run", "--suite", str(suite), "--plugin", str(plugin), "--out", str(out), "--workers", "2"])

    assert status == 0
    records = open_run(out).records
    mine = [r for r in records if (r.cell.training.defense if kind == "defense" else r.cell.attack).name == name]
    assert mine
    assert {record.status for record in records} == {"ok"}
    assert (out / "report" / "index.html").is_file()


def test_the_documents_name_only_what_exists() -> None:
    """Methods that the documents tell people to override or use are there."""
    from leakboard.attacks.base import Attack, Knowledge, ReconstructionTask
    from leakboard.defenses.base import Defense
    from leakboard.federation.party import Party

    named = re.findall(r"`(\w+)\(", (ROOT / "docs" / "adding-a-defense.md").read_text())
    for method in named:
        assert hasattr(Defense, method) or hasattr(Party, method), method
    attack = (ROOT / "docs" / "adding-an-attack.md").read_text()
    for owner, method in re.findall(r"`(knowledge|task)\.(\w+)\(", attack):
        assert hasattr(Knowledge if owner == "knowledge" else ReconstructionTask, method), method
    assert {"budget", "work"} <= set(dir(Attack))
