from __future__ import annotations

import ast
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.leaderboard.api.catalogue import KINDS
from leakboard.leaderboard.cli.main import main
from tests.core.helpers import in_fresh_process

PLUGIN = '''
from typing import ClassVar
from leakboard.core.plugins import Plugin

class {cls}(Plugin):
    """{cls} of the test."""

    kind: ClassVar[str] = "{kind}"
    name: ClassVar[str] = "{name}"
    strength: int = 1
'''


def write_plugin(path: Path, name: str, kind: str = "defense", cls: str = "Found") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PLUGIN.format(cls=cls, kind=kind, name=name))
    return path


@pytest.fixture
def clean_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outside plugin is left behind for other tests."""
    monkeypatch.setattr(registry, "_loaded_files", {})


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small checkout of its own: the true `core/` and two plugins."""
    root = tmp_path / "checkout"
    shutil.copytree(registry.ROOT / "core", root / "core", ignore=shutil.ignore_patterns("__pycache__"))
    write_plugin(root / "defenses" / "first.py", "first")
    write_plugin(root / "attacks" / "audit" / "second.py", "second", "attack")
    package = root / "src" / "leakboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for folder in ("core", "defenses", "attacks"):
        (package / folder).symlink_to(root / folder)
    monkeypatch.setattr(registry, "ROOT", root)
    monkeypatch.setattr(registry, "IMPORT_ROOT", root / "src")
    monkeypatch.setattr(registry, "INDEX_FILE", root / ".cache" / "plugins.json")
    monkeypatch.setattr(registry, "_loaded_files", {})
    registry.builtin_index.cache_clear()
    yield root
    registry.builtin_index.cache_clear()


def known(kind: str = "defense") -> list[str]:
    registry.builtin_index.cache_clear()
    return list(registry.entries(kind))


# --- discovery ----------------------------------------------------------------------------------


def named_classes(path: Path) -> set[str]:
    """The values of `name: ClassVar[str] = "..."` in a file, read without importing it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if (
                    isinstance(line, ast.AnnAssign)
                    and isinstance(line.target, ast.Name)
                    and line.target.id == "name"
                    and isinstance(line.value, ast.Constant)
                ):
                    found.add(str(line.value.value))
    return found


def is_ours(entry: dict[str, Any]) -> bool:
    """Not a file that another test loaded in this process."""
    return not Path(entry["file"]).is_absolute()


def test_every_plugin_in_the_folders_is_found() -> None:
    by_file: dict[str, set[str]] = {}
    for kind in registry.FOLDERS:
        for name, entry in registry.entries(kind).items():
            if is_ours(entry):
                by_file.setdefault(entry["file"], set()).add(name)
    expected = {str(path.relative_to(registry.ROOT)): named_classes(path) for path in registry.plugin_files()}
    assert by_file == {file: names for file, names in expected.items() if names}
    assert {"fedsgd"} <= by_file["defenses/fedsgd.py"]


def test_each_kind_lives_in_its_own_folder() -> None:
    for kind, patterns in registry.FOLDERS.items():
        for entry in filter(is_ours, registry.entries(kind).values()):
            assert any(Path(entry["file"]).match(pattern) for pattern in patterns), entry


def test_names_are_listed_in_natural_order() -> None:
    found = [name for name in registry.entries("model") if name.startswith("resnet")]
    assert found == ["resnet8", "resnet11", "resnet20", "resnet56"]


def test_helper_files_are_no_plugins(checkout: Path) -> None:
    write_plugin(checkout / "defenses" / "_helper.py", "helper")
    assert known() == ["first"]


def test_listing_imports_no_torch_and_loading_imports_one_plugin() -> None:
    registry.builtin_index()  # the kept index holds
    # execute
    seen: dict[str, Any] = in_fresh_process(
        "import sys, json; from leakboard.core import registry\n"
        "listed = sorted(registry.entries('attack')); early = sorted(sys.modules)\n"
        "registry.load('attack', 'prior'); registry.load('defense', 'fedsgd')\n"
        "print(json.dumps({'listed': listed, 'early': early, 'late': sorted(sys.modules)}))"
    )
    # assert
    assert "prior" in seen["listed"]
    assert not {"torch", "numpy", "leakboard.attacks", "leakboard.defenses"} & set(seen["early"])
    plugin_modules = {registry.module_name(p) for p in registry.plugin_files()}
    bases = {name for name in plugin_modules if name.endswith((".base", "__init__"))}
    loaded = (plugin_modules - bases) & set(seen["late"])
    entry = registry.module_name(registry.ROOT / registry.find("attack", "prior")["file"])
    asked = ("leakboard.attacks.", "leakboard.defenses.")
    assert {m for m in loaded if m.startswith(asked) and registered(m)} == {entry, "leakboard.defenses.fedsgd"}
    assert not {m for m in loaded if m.startswith(("leakboard.metrics.", "leakboard.datasets.")) and registered(m)}


def registered(module: str) -> bool:
    """Whether a module holds a plugin."""
    file = module.removeprefix("leakboard.").replace(".", "/") + ".py"
    return any(entry["file"] == file for entry in registry.builtin_index())


# --- the kept index -----------------------------------------------------------------------------


def test_the_index_is_kept_and_read_again(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # prepare
    assert known() == ["first"]
    assert json.loads(registry.INDEX_FILE.read_text())["entries"]
    monkeypatch.setattr(registry, "_build_index", lambda: pytest.fail("rebuilt though nothing changed"))
    # execute and assert
    assert known() == ["first"]
    assert not list(registry.INDEX_FILE.parent.glob("*.part"))


def test_a_new_file_a_changed_one_and_a_removed_one_are_noticed(checkout: Path) -> None:
    assert known() == ["first"]
    write_plugin(checkout / "defenses" / "third.py", "third")
    assert known() == ["first", "third"]
    write_plugin(checkout / "defenses" / "third.py", "another")  # of another size: two writes may have one time
    assert known() == ["another", "first"]
    (checkout / "defenses" / "third.py").unlink()
    assert known() == ["first"]


def test_the_same_size_at_another_time_is_noticed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # Python's own cache looks at whole seconds only
    path = checkout / "defenses" / "first.py"
    assert known() == ["first"]
    before = path.stat()
    path.write_text(path.read_text().replace('"first"', '"fir5t"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert known() == ["fir5t"]


def test_every_base_of_goals_and_models_is_in_the_stamp_and_no_published_text(checkout: Path) -> None:
    counted = ("leaderboard/records/known.py", "leaderboard/goals/question.py", "federation/party.py")
    published = "leaderboard/published/quick/plugins/0.py"
    for name in (*counted, published):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    names = {name for name, _, _ in registry._stamp()}
    assert names.issuperset(counted)
    assert published not in names


def test_an_alias_works_and_names_the_new_name(tmp_path: Path) -> None:
    path = tmp_path / "renamed.py"
    path.write_text(
        "from typing import ClassVar\n"
        "from leakboard.defenses.base import Defense\n\n\n"
        "class Renamed(Defense):\n"
        '    """Renamed."""\n\n'
        '    name: ClassVar[str] = "renamed"\n'
        '    aliases: ClassVar[tuple[str, ...]] = ("formerly",)\n'
    )
    registry.load_file(path)
    with pytest.warns(DeprecationWarning, match="The defense 'formerly' is called 'renamed' now: use that name"):
        assert registry.find("defense", "formerly")["name"] == "renamed"
    assert registry.title_of("defense", "formerly", ["mp-dp", "renamed"]) == "renamed"
    assert registry.title_of("defense", "renamed", ["formerly"]) == "formerly"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.find("defense", "fedsgd")


def test_a_changed_helper_from_which_a_plugin_inherits_is_noticed(checkout: Path) -> None:
    # prepare
    helper = checkout / "defenses" / "_shared.py"
    helper.write_text("from leakboard.core.plugins import Plugin\nclass Shared(Plugin):\n    old: int = 1\n")
    heir = (
        "from leakboard.defenses._shared import Shared\nclass Heir(Shared):\n    kind = 'defense'\n    name = 'heir'\n"
    )
    (checkout / "defenses" / "heir.py").write_text(
        heir.replace("kind =", "kind: ClassVar[str] =")
        .replace("name =", "name: ClassVar[str] =")
        .replace("from leakboard", "from typing import ClassVar\nfrom leakboard", 1)
    )
    known()
    assert list(registry.find("defense", "heir")["parameters"]) == ["old"]
    # execute
    helper.write_text(helper.read_text().replace("old:", "renewed:"))
    known()
    # assert
    assert list(registry.find("defense", "heir")["parameters"]) == ["renewed"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"stamp": 1}', "null"])
def test_a_broken_index_is_built_anew(checkout: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.INDEX_FILE.parent.mkdir()
    registry.INDEX_FILE.write_text(content)
    entry = {"kind": "defense", "name": "built", "file": "defenses/first.py", "class": "Found"}
    monkeypatch.setattr(registry, "_build_index", lambda: [entry])
    assert known() == ["built"]
    assert json.loads(registry.INDEX_FILE.read_text())["entries"] == [entry]


def test_two_of_one_name_are_refused(checkout: Path) -> None:
    write_plugin(checkout / "defenses" / "twin.py", "first")
    with pytest.raises(UserError, match=r"Two plugins are called defense 'first': defenses/first.py and defenses/twin"):
        known()


def test_one_name_in_two_kinds_is_allowed(checkout: Path) -> None:
    write_plugin(checkout / "attacks" / "audit" / "first.py", "first", "attack")
    assert known("attack") == ["first", "second"]


def test_a_broken_plugin_is_one_sentence(checkout: Path) -> None:
    (checkout / "defenses" / "broken.py").write_text("import nonsense_that_is_not_there")
    with pytest.raises(UserError) as caught:
        known()
    assert "nonsense_that_is_not_there" in str(caught.value)
    assert "\n" not in str(caught.value)


# --- by name ------------------------------------------------------------------------------------


def test_a_wrong_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="There is no defense 'fedsdg': did you mean 'fedsgd'\\? Known: "):
        registry.load("defense", "fedsdg")


def test_create_validates_and_takes_the_shorthand() -> None:
    made = registry.create("model", "mlp", {"hidden": [8]})
    assert made.parameters() == {"norm": "none", "bias": False, "hidden": [8]}
    assert registry.create("model", "module:net.py:Net").parameters()["target"] == "net.py:Net"
    with pytest.raises(UserError, match="The model 'mlp' takes nothing after a colon; given: mlp:8"):
        registry.create("model", "mlp:8")
    with pytest.raises(UserError, match="The model 'mlp' has no setting 'hiden': did you mean 'hidden'"):
        registry.create("model", "mlp", {"hiden": [8]})


# --- plugins from outside -----------------------------------------------------------------------


@pytest.mark.usefixtures("clean_files")
def test_an_outside_plugin_is_loaded_and_listed(tmp_path: Path) -> None:
    file = write_plugin(tmp_path / "mine.py", "mine")
    entries = registry.load_file(file)
    assert [(e["kind"], e["name"], e["file"]) for e in entries] == [("defense", "mine", str(file))]
    assert "mine" in registry.entries("defense")
    assert registry.create("defense", "mine", {"strength": 5}).parameters() == {"strength": 5}
    # again, and by another spelling of the path: the same classes
    again = registry.load_file(tmp_path / "x" / ".." / "mine.py")
    assert again == entries
    assert registry.load("defense", "mine") is registry.load("defense", "mine")


@pytest.mark.usefixtures("clean_files")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nonsense_that_is_not_there", "does not import: ModuleNotFoundError: No module named 'nonsense"),
        ("def (", "does not import: SyntaxError"),
        ("1 / 0", "does not import: ZeroDivisionError: division by zero."),
        ("x = 1", "defines no plugin: a class that sets `name`, derived from one of Defense, Attack"),
        ("from leakboard.defenses.fedsgd import FedSGD", "defines no plugin"),
    ],
)
def test_an_outside_file_that_is_no_plugin_is_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(content)
    with pytest.raises(UserError) as caught:
        registry.load_file(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("clean_files")
def test_an_outside_file_that_is_not_there_or_not_python(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no plugin file"):
        registry.load_file(tmp_path / "absent.py")
    with pytest.raises(UserError, match="There is no plugin file"):
        registry.load_file(tmp_path)
    (tmp_path / "mine.txt").write_text("x = 1")
    with pytest.raises(UserError, match=r"is not a Python file: a plugin file ends in \.py\."):
        registry.load_file(tmp_path / "mine.txt")


@pytest.mark.usefixtures("clean_files")
def test_a_mended_file_loads_after_a_broken_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("1 / 0")
    with pytest.raises(UserError):
        registry.load_file(file)
    write_plugin(file, "mine")
    assert [e["name"] for e in registry.load_file(file)] == ["mine"]


@pytest.mark.usefixtures("clean_files")
def test_an_outside_plugin_cannot_take_a_name_that_is_taken(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Two plugins are called defense 'fedsgd'"):
        registry.load_file(write_plugin(tmp_path / "mine.py", "fedsgd"))
    # and the refused one shadows nobody
    assert registry.find("defense", "fedsgd")["file"] == "defenses/fedsgd.py"


@pytest.mark.usefixtures("clean_files")
def test_two_outside_plugins_cannot_have_one_name(tmp_path: Path) -> None:
    first = registry.load_file(write_plugin(tmp_path / "a.py", "mine"))
    with pytest.raises(UserError, match="Two plugins are called defense 'mine'"):
        registry.load_file(write_plugin(tmp_path / "b.py", "mine"))
    assert registry.find("defense", "mine") == first[0]


def install(folder: Path, name: str, module: str, group: str = "leakboard.defenses") -> None:
    """A package as pip would leave it: a module, and metadata with an entry point."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")


def test_installed_packages_offer_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_plugin(tmp_path / "someones_defense.py", "someones-defense")
    install(tmp_path, "someones-package", "someones_defense")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.installed_files() == [str(file)]
    assert main(["list", "defenses"]) == 0
    assert "someones-defense" in capsys.readouterr().out


@pytest.mark.parametrize("kind", list(KINDS))
def test_installed_packages_offer_plugins_of_every_kind(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plugin(tmp_path / "someones_plugin.py", "someones-plugin", KINDS[kind])
    install(tmp_path, "someones-package", "someones_plugin", f"leakboard.{kind}")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["list", kind]) == 0
    assert "someones-plugin" in capsys.readouterr().out


def test_an_installed_plugin_without_a_module_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "empty-package", "nowhere.at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"The installed plugin 'empty-package' .* names no module"):
        registry.installed_files()


def test_an_installed_package_that_does_not_import_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text("raise RuntimeError('no licence')")
    install(tmp_path, "broken-package", "broken_package.defense")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"The installed plugin 'broken-package' .* names no module"):
        registry.installed_files()
