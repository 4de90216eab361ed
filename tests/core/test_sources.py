from __future__ import annotations

import ast
from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.core.registry import FOLDERS, ROOT, entries, plugin_files
from leakboard.core.sources import PACKAGES, code_digest, imported_modules, module_file, source_digests
from tests.core.helpers import in_fresh_process

#: how the names of modules begin that hold plugins
PLUGINS = ("leakboard.defenses.", "leakboard.attacks.", "leakboard.federation.models.")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return registry.module_name(path).removesuffix(".__init__")


def test_imports_are_found_wherever_they_stand() -> None:
    source = (
        "import leakboard.core.seeds, json\n"
        "from leakboard.federation.models import base\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from leakboard.core.plugins import Plugin\n"
        "def late():\n    from leakboard.core import randomness as r\n"
    )
    assert imported_modules(source) == {
        "leakboard.core",
        "leakboard.core.seeds",
        "leakboard.core.plugins",
        "leakboard.core.randomness",
        "leakboard.federation",
        "leakboard.federation.models",
        "leakboard.federation.models.base",
    }


def test_others_modules_are_not_ours() -> None:
    assert imported_modules(
        "import torch, numpy as np\nfrom pathlib import Path\nfrom leakboard.core.nowhere import x"
    ) == {"leakboard.core"}
    assert module_file("torch.nn") is None
    assert module_file("tests.core") is None
    assert module_file("leakboard.core.seeds") == ROOT / "core" / "seeds.py"
    assert module_file("leakboard.core") == ROOT / "core" / "__init__.py"


def test_nobody_imports_relatively() -> None:
    # the closure does not follow relative imports
    relative = [
        path
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_nobody_imports_by_a_text_but_the_registry_and_the_two_doors() -> None:
    # the closure does not follow importlib either: those who use it load plugins (roots of their own) or find packages
    # of others; attack_process asks only whether a file was opened by an import
    users = {module_name(path) for path in FILES if "importlib" in path.read_text()}
    assert users <= {
        "leakboard.core.registry",
        "leakboard.core.vision",
        "leakboard.datasets.digits",
        "leakboard.datasets.hf",
        "leakboard.federation.models.module",
        "leakboard.leaderboard.cells.attack_process",
        "leakboard.leaderboard.cells.preload",
        "leakboard.leaderboard.records.provenance",
        "leakboard.metrics.building_blocks.backbone",
    }


def test_the_closure_is_transitive_and_holds_the_files_digests() -> None:
    digests = source_digests(["leakboard.defenses.fedsgd"])
    # fedsgd -> base -> task -> models.base -> plugins -> errors
    reached = (
        "leakboard.defenses",
        "leakboard.defenses.base",
        "leakboard.federation.task",
        "leakboard.federation.models.base",
        "leakboard.core.plugins",
        "leakboard.core.errors",
    )
    for name in ("leakboard.defenses.fedsgd", *reached):
        path = module_file(name)
        assert path is not None
        assert digests[name] == code_digest(path.read_bytes())


def test_what_comes_along_with_an_outside_plugin_counts(tmp_path: Path) -> None:
    # prepare: a package with an unused module, and somebody else's package beside it
    package, other = tmp_path / "mine", tmp_path / "theirs"
    for folder in (package, other):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    plugin, helper, deep = package / "plugin.py", package / "helper.py", package / "deep.py"
    plugin.write_text("import theirs\nfrom leakboard.core.seeds import derive_seed\nfrom mine import helper\n")
    helper.write_bytes("# -*- coding: latin-1 -*- é\ndef late():\n    from .deep import x\n".encode("latin-1"))
    deep.write_text("from . import deeper")
    (package / "deeper.py").write_bytes(b"\xef\xbb\xbfx = 1")
    (package / "unused.py").write_text("")
    # execute
    before = source_digests([str(plugin)])
    (package / "deeper.py").write_text("x = 2")
    after = source_digests([str(plugin)])
    # assert
    assert {name for name in before if name.endswith(".py")} == {
        *("plugin.py", "helper.py", "deep.py", "deeper.py", "__init__.py")
    }
    assert "leakboard.core.seeds" in before
    assert [name for name in before if before[name] != after[name]] == ["deeper.py"]


def test_a_module_beside_a_single_plugin_file_counts_and_a_package_there_does_not(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text("import helper, library\n")
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "__init__.py").write_text("")
    assert set(source_digests([str(tmp_path / "plugin.py")])) == {"plugin.py", "helper.py"}


def test_unrelated_plugins_are_not_in_it() -> None:
    found = set(source_digests(["leakboard.leaderboard.cells.run_cell", "defenses/fedsgd.py"]))
    holding = {entry["file"] for kind in FOLDERS for entry in entries(kind).values()}
    plugins = {module_name(path) for path in plugin_files() if str(path.relative_to(ROOT)) in holding}
    assert "leakboard.defenses.fedsgd" in found
    assert found & {p for p in plugins if p.startswith(PLUGINS)} == {"leakboard.defenses.fedsgd"}


def test_a_file_is_its_module_however_it_is_spelled() -> None:
    by_name = source_digests(["leakboard.defenses.fedsgd"])
    assert source_digests(["defenses/fedsgd.py"]) == by_name
    assert source_digests([str(ROOT / "defenses" / "fedsgd.py")]) == by_name


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_the_packages_of_a_module_belong_to_it(path: Path) -> None:
    name = module_name(path)
    parts = name.split(".")
    parents = {".".join(parts[:i]) for i in range(2, len(parts))}
    assert parents <= set(source_digests([name]))


def test_an_outside_plugin_counts_by_what_it_says_not_where_it_lies(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("from leakboard.core import seeds\n")
    first = source_digests([str(tmp_path / "a" / "mine.py")])
    assert first == source_digests([str(tmp_path / "b" / "mine.py")])
    assert {"mine.py", "leakboard.core", "leakboard.core.seeds"} <= set(first)
    (tmp_path / "b" / "mine.py").write_text("from leakboard.core import seeds\nchanged = 1\n")
    second = source_digests([str(tmp_path / "b" / "mine.py")])
    assert second["mine.py"] != first["mine.py"]
    assert second["leakboard.core.seeds"] == first["leakboard.core.seeds"]


def test_two_outside_plugins_of_one_file_name_both_count(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.py" for folder in ("a", "b")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(f"x = {number}\n")
    roots = [str(file) for file in files]
    before = source_digests(roots)
    assert source_digests(roots[::-1]) == before
    for file in files:
        old = file.read_text()
        file.write_text(old + "changed = 1\n")
        assert source_digests(roots) != before
        file.write_text(old)


@pytest.mark.parametrize(
    "text",
    [
        '"""Better words."""\ndef f(x: int) -> int:\n    """Now with a docstring."""\n    return x + 1\n',
        "# a comment\n\ndef f(x: int) -> int:\n    return (\n        x + 1  # one more\n    )\n",
        "def f(x: int) -> int: return x+1",
    ],
)
def test_comments_docstrings_and_formatting_change_no_digest(text: str) -> None:
    assert code_digest(text.encode()) == code_digest(b"def f(x: int) -> int:\n    return x + 1\n")


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: int) -> int:\n    return x + 2\n",
        "def f(x: int) -> int:\n    return x - 1\n",
        "def f(x: int) -> int:\n    return x + 1.0\n",
        "def f(x: int) -> int:\n    return x + True\n",
        "def f(x: float) -> int:\n    return x + 1\n",
        "async def f(x: int) -> int:\n    return x + 1\n",
        "def f(x: int = 1) -> int:\n    return x + 1\n",
        "def f(x: int) -> int:\n    return x + 1\n    'a text that is no docstring'\n",
        "def f(x: int) -> int:\n    return x + 1\n\nf(1)\n",
        "def f(x: int) -> int:\n    return x + 1\n}",
    ],
)
def test_what_code_does_changes_its_digest(text: str) -> None:
    assert code_digest(text.encode()) != code_digest(b"def f(x: int) -> int:\n    return x + 1\n")


def test_a_root_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"core\.nowhere"):
        source_digests(["leakboard.core.nowhere"])


def test_the_static_closure_covers_what_is_really_imported() -> None:
    loaded: list[str] = in_fresh_process(
        "import leakboard.leaderboard.cells.run_cell, sys, json; print(json.dumps(sorted(sys.modules)))"
    )
    ours = {name for name in loaded if module_file(name)}
    assert "leakboard.leaderboard.cells.run_cell" in ours
    assert ours <= set(source_digests(["leakboard.leaderboard.cells.run_cell"]))
