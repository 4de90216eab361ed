"""The notebook runs from top to bottom, and shows what it says."""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from leakboard.core.registry import ROOT
from tests.leaderboard.runs import forget_plugins

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def run_cells(path: Path, module: ModuleType) -> None:
    """Run the cells as IPython does: in one module without a file, each with its text in Python's cache of lines."""
    for number, cell in enumerate(code_cells(path)):
        text, name = "".join(cell["source"]), f"<{path.name} {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(module))


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = ModuleType("__main__")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", module)
    with mpl.rc_context({"backend": "agg"}):
        yield module
    plt.close("all")
    forget_plugins()


@pytest.mark.slow
def test_the_notebook_draws_the_trade_off(notebook: ModuleType) -> None:
    run_cells(ROOT / "examples" / "evaluate_a_defense.ipynb", notebook)

    board = vars(notebook)["board"].set_index("defense")
    assert list(board.index) == ["fedsgd", "noisy (sigma 0.01)", "noisy (sigma 0.1)", "noisy (sigma 0.3)"]
    leakage = board["server: images recovered"]
    assert leakage["fedsgd"] > 50 > leakage["noisy (sigma 0.3)"]
    assert board["accuracy"]["fedsgd"] > board["accuracy"]["noisy (sigma 0.3)"]
    (axes,) = vars(notebook)["figure"].axes
    assert axes.lines[0].get_xdata().tolist() == leakage.tolist()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(board.index)
    assert {message.receiver for message in vars(notebook)["first_round"].messages} >= {"server"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    cells = code_cells(path)
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
