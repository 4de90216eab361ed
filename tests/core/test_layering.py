"""Nothing on the left imports from its right (DESIGN.md, "The way data flows")."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.core.registry import ROOT
from leakboard.core.sources import PACKAGES, imported_modules

LEFT_OF_DEFENSES = {"core", "datasets", "federation"}
#: package -> what it may import, itself included
ALLOWED = {
    "core": {"core"},
    "datasets": {"core", "datasets"},
    "federation": LEFT_OF_DEFENSES,
    "defenses": LEFT_OF_DEFENSES | {"defenses"},
    "attacks": LEFT_OF_DEFENSES | {"defenses", "attacks"},
    "metrics": LEFT_OF_DEFENSES | {"defenses", "metrics"},  # metrics know no attack, attacks no metric
    "suites": set(PACKAGES) - {"leaderboard"},
    "leaderboard": set(PACKAGES),
}
FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def strangers(package: str, source: str) -> set[str]:
    return {name for name in imported_modules(source) if name.split(".")[1] not in ALLOWED[package]}


def test_every_package_has_its_place() -> None:
    assert set(ALLOWED) == set(PACKAGES)
    assert {path.parts[0] for path in FILES} == set(PACKAGES)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_only_from_the_left(path: Path) -> None:
    assert strangers(path.parts[0], (ROOT / path).read_text()) == set()


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("core", "import leakboard.federation"),
        ("federation", "def f():\n    from leakboard.defenses import fedsgd"),
        ("defenses", "from leakboard.attacks.base import Attack"),
        ("attacks", "import leakboard.metrics.psnr"),
        ("attacks", "from leakboard.leaderboard.planning.run_folder import Store"),
        ("metrics", "from leakboard.attacks import base"),
    ],
)
def test_the_check_sees_a_wrong_import(package: str, source: str) -> None:
    assert strangers(package, source)
