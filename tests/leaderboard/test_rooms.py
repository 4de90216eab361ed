"""Each room of `leaderboard/` imports only from the rooms before it, and no module imports itself by a detour."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from leakboard.core.registry import ROOT, module_name
from leakboard.core.sources import PACKAGES, imported_modules

#: in the order of docs/architecture.md
ROOMS = (
    *("records", "goals", "planning", "cells", "engine", "tables", "ranking", "page", "publishing", "site"),
    *("api", "cli"),
)
LEADERBOARD = ROOT / "leaderboard"
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ROOM_FILES = [path for path in FILES if path.is_relative_to(LEADERBOARD) and path.parent != LEADERBOARD]


def room_of(module: str) -> str | None:
    """The room of a module; None for modules outside `leaderboard` and for `leaderboard` itself."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["leakboard", "leaderboard"] and len(parts) > 2 else None


def too_late(room: str, source: str) -> set[str]:
    """The modules of later rooms that a text of this room imports."""
    rooms = {name: room_of(name) for name in imported_modules(source)}
    return {name for name, other in rooms.items() if other is not None and ROOMS.index(other) > ROOMS.index(room)}


def name_of(path: Path) -> str:
    return module_name(path).removesuffix(".__init__")


def test_every_file_is_in_a_room_and_every_room_is_there() -> None:
    assert {path.name for path in LEADERBOARD.glob("*.py")} == {"__init__.py"}
    assert {str(room_of(module_name(path))) for path in ROOM_FILES} == set(ROOMS)


@pytest.mark.parametrize("path", ROOM_FILES, ids=name_of)
def test_a_room_imports_only_from_the_rooms_before_it(path: Path) -> None:
    assert too_late(str(room_of(module_name(path))), path.read_text()) == set()


def test_the_check_sees_a_wrong_import() -> None:
    assert too_late("records", "def f():\n    from leakboard.leaderboard.planning import plan") == {
        "leakboard.leaderboard.planning",
        "leakboard.leaderboard.planning.plan",
    }
    assert too_late("planning", "from leakboard.leaderboard.records import record") == set()


def importing(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of modules that import each other; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_no_module_of_ours_imports_itself_by_a_detour() -> None:
    # a package's own `__init__` runs before its modules, so importing one's package is no detour
    texts = {name_of(path): path.read_text() for path in FILES}
    graph = {
        name: {other for other in imported_modules(text) if other != name and not name.startswith(f"{other}.")}
        for name, text in texts.items()
    }
    assert importing(graph) == []


def test_the_check_sees_a_cycle() -> None:
    assert set(importing({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
