"""`new` writes what `check` accepts; `check` refuses what breaks the contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.leaderboard.cli.main import main

pytestmark = pytest.mark.usefixtures("fork_server")


@pytest.fixture(autouse=True)
def no_loaded_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test loads is gone after it."""
    monkeypatch.setattr(registry, "_loaded_files", {})


@pytest.mark.parametrize("kind", ["defense", "attack"])
def test_a_new_plugin_keeps_the_contract(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["new", kind, "my-thing", "--to", str(tmp_path)]) == 0
    assert main(["check", str(tmp_path / "my_thing.py")]) == 0
    said = capfd.readouterr().out
    assert f"{kind} 'my-thing'\n  ok      It says what it is" in said
    assert said.endswith("The contract holds.\n")
    assert "BROKEN  " not in said


def test_a_plugin_that_draws_from_the_global_state_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "attack", "my-dice", "--to", str(tmp_path)]) == 0
    file = tmp_path / "my_dice.py"
    file.write_text(file.read_text().replace("scores > threshold)", "torch.rand(len(scores)) > 0.5)"))
    assert main(["check", str(file)]) == 1
    said = capfd.readouterr().out
    (broken,) = (line for line in said.splitlines() if line.startswith("  BROKEN  "))
    assert "Two answers with one seed differ: draw from `knowledge.generator()`." in broken
    assert ", 1 BROKEN, " in said
    assert said.endswith("The contract does not hold.\n")


def test_a_wrong_shape_is_told_once_and_in_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "defense", "my-shape", "--to", str(tmp_path)]) == 0
    file = tmp_path / "my_shape.py"
    text = file.read_text()
    start = text.index("        with me.phase")
    file.write_text(text[:start] + "        return {name: value.flatten() for name, value in gradient.items()}\n")
    assert main(["check", str(file)]) == 1
    said = capfd.readouterr().out
    (broken,) = (line for line in said.splitlines() if line.startswith("  BROKEN  "))
    assert "`protect` must return " in broken
    assert "in the shape of the gradient, (8, 1024); given: (8192,)." in broken


def test_check_needs_neither_pytest_nor_the_checkout_as_working_folder(tmp_path: Path) -> None:
    assert main(["new", "attack", "my-thing", "--to", str(tmp_path)]) == 0
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['tests'] = None; "
        "from leakboard.leaderboard.cli.main import main; sys.exit(main(['check', 'my_thing.py']))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=registry.importing_us(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("The contract holds.\n")


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
