"""`import leakboard` is light, its names are there, and it is part of no key."""

from __future__ import annotations

import ast

import pytest

import leakboard as lb
from leakboard.core.registry import ROOT
from leakboard.core.sources import source_digests
from tests.core.helpers import in_fresh_process

INIT = ROOT / "src" / "leakboard" / "__init__.py"


def test_the_import_loads_nothing_else() -> None:
    code = "import json, sys; import leakboard; print(json.dumps(sorted(sys.modules)))"
    loaded = in_fresh_process(code)
    assert "leakboard" in loaded
    assert [name for name in loaded if name.startswith("leakboard.")] == []
    assert not {"torch", "numpy", "pandas", "pydantic"} & set(loaded)


@pytest.mark.parametrize("name", lb.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(lb, name)
    assert value.__module__.startswith("leakboard.")
    assert value.__doc__
    assert name in dir(lb)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(INIT.read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == {name: f"leakboard.{lb._HOMES[name]}" for name in lb.__all__}
    assert set(lb._HOMES) == set(lb.__all__)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'evalute'"):
        _ = lb.evalute  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entry", "base"),
    [
        ("leakboard.leaderboard.cells.train", "leakboard.defenses.base"),
        ("leakboard.leaderboard.cells.question", "leakboard.attacks.base"),
        ("leakboard.leaderboard.cells.run_cell", "leakboard.metrics.base"),
    ],
)
def test_a_plugin_that_imports_the_package_alone_has_its_base_in_the_key(entry: str, base: str) -> None:
    found = source_digests([entry])
    assert base in found
    assert "leakboard" not in found
    assert not [name for name in found if name.startswith("leakboard.leaderboard.api")]
