"""`new` writes what `check` accepts; `check` refuses what breaks the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.leaderboard.cli.main import main


@pytest.fixture(autouse=True)
def no_loaded_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test loads is gone after it."""
    monkeypatch.setattr(registry, "_loaded_files", {})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["defense", "attack"])
def test_a_new_plugin_keeps_the_contract(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["new", kind, "my-thing", "--to", str(tmp_path)]) == 0
    assert main(["check", str(tmp_path / "my_thing.py")]) == 0
    said = capfd.readouterr().out
    assert f"checking {kind} 'my-thing'" in said
    assert "The contract holds." in said
    assert " passed" in said


@pytest.mark.slow
def test_a_plugin_that_draws_from_the_global_state_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "attack", "my-dice", "--to", str(tmp_path)]) == 0
    file = tmp_path / "my_dice.py"
    file.write_text(file.read_text().replace("scores > threshold)", "torch.rand(len(scores)) > 0.5)"))
    assert main(["check", str(file)]) == 1
    said = capfd.readouterr().out
    assert "test_adding_global_randomness_changes_nothing" in said
    assert "The contract does not hold" in said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Noisy", "lower-case words joined by '-'"),
        ("../evil", "lower-case words joined by '-'"),
        ("fedsgd", "There is a defense 'fedsgd' already"),
    ],
)
def test_bad_names_are_one_sentence(
    name: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "defense", name, "--to", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_thing.py").write_text("mine")
    assert main(["new", "defense", "my-thing", "--to", str(tmp_path)]) == 2
    assert "is there already: nothing was written" in capsys.readouterr().err
    assert (tmp_path / "my_thing.py").read_text() == "mine"
