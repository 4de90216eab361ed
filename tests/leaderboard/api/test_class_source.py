"""A class of a notebook becomes a file that defines the same class."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.leaderboard.api.class_source import literal, plugin_text, refuse_difference
from tests.leaderboard.runs import forget_plugins

IMPORTS = """
from typing import ClassVar
import torch.nn.functional as F
import torch
from pydantic import Field
import leakboard as lb
"""
HELPERS = """
WIDTHS = (1, 2.5)
OTHER = object()

def double(value: torch.Tensor) -> torch.Tensor:
    return value * WIDTHS[1]

def twice(value: torch.Tensor) -> torch.Tensor:
    return double(double(value))
"""
CLASS = '''
class Mine(lb.Defense):
    """Doubles."""

    name: ClassVar[str] = "mine"
    by: float = Field(2.0, gt=0)

    def protect(self, me: lb.Party, gradient: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: twice(F.relu(value)) for name, value in gradient.items()}
'''


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module like that of a notebook: no file, its cells in Python's cache of lines."""
    module = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", module)
    yield module
    forget_plugins()


def run_cell(module: ModuleType, number: int, text: str, *, kept: bool = True) -> None:
    name = f"<cell {number}>"
    if kept:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), vars(module))


def the_class(module: ModuleType) -> Any:
    return vars(module)["Mine"]


def test_the_file_defines_the_same_class(notebook: ModuleType, tmp_path: Path) -> None:
    for number, text in enumerate((IMPORTS, HELPERS, CLASS)):
        run_cell(notebook, number, text)

    text = plugin_text(the_class(notebook))

    file = tmp_path / "mine.py"
    file.write_text(text)
    (entry,) = registry.load_file(file)
    assert entry == {**the_class(notebook).describe(), "file": str(file), "class": "Mine"}
    assert "OTHER" not in text  # only what is used
    assert text.index("def double") < text.index("def twice") < text.index("class Mine")
    assert plugin_text(the_class(notebook)) == text


def test_the_newest_cell_counts(notebook: ModuleType) -> None:
    for number, text in enumerate((IMPORTS, HELPERS, CLASS, CLASS.replace("Doubles", "Doubles twice"))):
        run_cell(notebook, number, text)
    assert "Doubles twice." in plugin_text(the_class(notebook))


def test_what_cannot_be_written_is_one_sentence(notebook: ModuleType) -> None:
    for number, text in enumerate((IMPORTS, HELPERS, CLASS.replace("F.relu(value)", "OTHER"))):
        run_cell(notebook, number, text)
    with pytest.raises(UserError, match=r"Mine uses 'OTHER', which cannot be written .* into a file of its own"):
        plugin_text(the_class(notebook))


def test_a_class_without_a_text_is_one_sentence(notebook: ModuleType) -> None:
    run_cell(notebook, 0, IMPORTS)
    run_cell(notebook, 1, HELPERS)
    run_cell(notebook, 99, CLASS, kept=False)
    with pytest.raises(UserError, match=r"The source of Mine cannot be found .*: put the class into a file"):
        plugin_text(the_class(notebook))


AROUND = """
def make(by, width):
    class Mine(lb.Defense):
        name: ClassVar[str] = "mine"
        size: float = 1.0

        def protect(self, me, gradient):
            super().protect(me, gradient)
            return {name: value * by for name, value in gradient.items()}

    return Mine

Mine = make(2.0, 3)
"""


def test_a_class_with_variables_of_a_function_around_it_is_refused(notebook: ModuleType) -> None:
    for number, text in enumerate((IMPORTS, "by = 3.0", AROUND)):
        run_cell(notebook, number, text)
    with pytest.raises(UserError, match=r"Mine uses variables of a function around Mine \(by\), which cannot be"):
        plugin_text(the_class(notebook))


def test_super_is_no_variable_around_a_class(notebook: ModuleType) -> None:
    run_cell(notebook, 0, IMPORTS)
    run_cell(notebook, 1, CLASS.replace("return {", "super().protect(me, gradient); return {").replace("twice", ""))
    assert "super().protect" in plugin_text(the_class(notebook))


REBOUND = """
LEVEL = 1.0

class Mine(lb.Defense):
    name: ClassVar[str] = "mine"
    text: ClassVar[str] = f"level {LEVEL}"
    by: float = LEVEL

    def protect(self, me, gradient, level=LEVEL):
        return gradient
"""


def test_a_constant_that_changed_after_the_class_is_noticed(notebook: ModuleType, tmp_path: Path) -> None:
    run_cell(notebook, 0, IMPORTS)
    run_cell(notebook, 1, REBOUND)
    (tmp_path / "mine.py").write_text(plugin_text(the_class(notebook)))
    registry.load_file(tmp_path / "mine.py")
    refuse_difference(the_class(notebook), registry.load("defense", "mine"))  # nothing changed yet

    run_cell(notebook, 2, "LEVEL = 2.0")
    (tmp_path / "mine.py").write_text(plugin_text(the_class(notebook)))
    registry.load_file(tmp_path / "mine.py")
    with pytest.raises(UserError, match=r"Mine differs from its own source in parameters, protect\(\), text, probably"):
        refuse_difference(the_class(notebook), registry.load("defense", "mine"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b", "a", "c"}, "{'a', 'b', 'c'}"),
        (frozenset({2, 1}), "frozenset({1, 2})"),
        (set(), "set(())"),
        ((float("inf"),), "(float('inf'),)"),
        ({"x": [-float("inf"), 0.5]}, "{'x': [float('-inf'), 0.5]}"),
    ],
)
def test_plain_values_are_written_the_same_in_every_process(value: object, text: str) -> None:
    assert literal(value) == text
    assert eval(text) == value


def test_submodules_that_are_reached_by_dots_are_imported(notebook: ModuleType) -> None:
    by_dots = CLASS.replace("F.relu", "torch.nn.functional.relu").replace("twice(", "one(")
    helpers = """
import xml.dom.minidom

def one(value):
    return other(value) if xml.dom.minidom.parseString else value

def other(value):
    return one(value) if xml.dom.Node else value
"""
    for number, text in enumerate((IMPORTS, helpers, by_dots)):
        run_cell(notebook, number, text)
    lines = plugin_text(the_class(notebook)).splitlines()
    assert {"import xml", "import xml.dom", "import xml.dom.minidom", "import torch.nn.functional"} <= set(lines)
    assert [line for line in lines if line.startswith("def ")] == ["def other(value):", "def one(value):"]
