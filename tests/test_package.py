"""The package as others get it: a wheel in an environment of its own, far from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from leakboard.core.registry import ROOT
from leakboard.core.sources import PACKAGES
from tests.leaderboard.plugin_texts import SCALED
from tests.leaderboard.runs import HANG, TINY_CELLS, write_suite

SITE = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
#: where this environment keeps the libraries of others
LIBRARIES = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
DATA = (
    "leakboard/py.typed",
    "leakboard/suites/quick.yaml",
    "leakboard/leaderboard/page/assets/page.js",
    "leakboard/leaderboard/page/assets/index.html.jinja",
    "leakboard/leaderboard/page/assets/scoreboard.html.jinja",
    "leakboard/leaderboard/page/assets/frames.js",
    "leakboard/leaderboard/site/assets/layout.html.jinja",
    "leakboard/leaderboard/site/assets/site.css",
    "leakboard/leaderboard/records/record.schema.json",
    "leakboard/leaderboard/tables/paper.yaml",
)


def do(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that knows nothing of the checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env = {**kept, "LEAKBOARD_CACHE": str(cwd / "cache")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=HANG)


def worked(*command: object, cwd: Path) -> str:
    done = do(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is made of: building leaves files beside its sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", *PACKAGES):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skipped)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    worked(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


def environment(folder: Path) -> Path:
    """A fresh environment that has the libraries of this one, and nothing of ours."""
    venv.create(folder, with_pip=False, symlinks=True)
    (folder / SITE / "libraries.pth").write_text("\n".join(LIBRARIES) + "\n")
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `bin` of an environment into which the wheel was installed."""
    folder = environment(tmp_path_factory.mktemp("installed"))
    python = folder / "bin" / "python"
    worked(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plugin and a suite, and nothing else."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "scaled.py").write_text(SCALED.replace("FACTOR", "0.5"))
    write_suite(folder)
    return folder


@pytest.mark.parametrize(
    ("extra", "locked"),
    [("", ""), ("ray", "-ray"), ("dev", "-dev"), ("", "-flower"), ("flower", "-flower"), ("hf", "-flower")],
)
def test_the_locked_set_lies_within_the_ranges(extra: str, locked: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = project["optional-dependencies"][extra] if extra else project["dependencies"]
    lines = (ROOT / f"requirements{locked}.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if "==" in line)
    ranges = [Requirement(line) for line in given]
    assert ranges
    for one in ranges:
        assert one.specifier.contains(pins[one.name.lower()]), (
            f"{one} does not allow the pinned {pins[one.name.lower()]}"
        )


@pytest.mark.slow
def test_the_wheel_holds_one_name_with_its_data_and_no_published_record(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "leakboard",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }
    assert set(DATA) <= set(names)
    assert {f"leakboard/suites/{path.name}" for path in (ROOT / "suites").glob("*.yaml")} <= set(names)
    assert not [name for name in names if "published/" in name]


@pytest.mark.slow
def test_every_module_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "published" not in path.parts]
    missing = {f"leakboard/{path.relative_to(ROOT).as_posix()}" for path in files} - names
    assert missing == set()


@pytest.mark.slow
def test_an_installed_package_runs_a_suite_with_a_plugin(installed: Path, elsewhere: Path) -> None:
    place = worked(installed / "python", "-c", "import leakboard; print(leakboard.__file__)", cwd=elsewhere)
    assert Path(place.strip()) == installed.parent / SITE / "leakboard" / "__init__.py"

    command = (installed / "leakboard", "run", "--suite", "suite.yaml", "--plugin", "scaled.py", "--out", "run")
    shown = worked(*command, cwd=elsewhere)

    assert "scaled" in shown
    records = [json.loads(path.read_text()) for path in (elsewhere / "run" / "records").glob("*.json")]
    assert len(records) == 2 * TINY_CELLS
    assert {record["status"] for record in records} == {"ok"}
    assert {record["provenance"]["commit"] for record in records} == {None}  # no checkout, so no commit
    assert (elsewhere / "run" / "report" / "index.html").is_file()


@pytest.mark.slow
def test_an_installed_package_lists_its_plugins_and_suites(installed: Path, elsewhere: Path) -> None:
    shown = json.loads(worked(installed / "leakboard", "list", "--json", cwd=elsewhere))
    assert {"fedsgd", "mp-dp"} <= {plugin["name"] for plugin in shown["defenses"]}
    assert "quick" in {suite["name"] for suite in shown["suites"]}


@pytest.mark.slow
def test_an_installed_package_says_where_published_records_are(installed: Path, elsewhere: Path) -> None:
    done = do(installed / "python", "-c", "import leakboard as lb; lb.results('quick')", cwd=elsewhere)
    assert "UserError: The published records are not part of the installed package: clone" in done.stderr


@pytest.mark.slow
def test_an_installed_package_checks_a_plugin(installed: Path, elsewhere: Path) -> None:
    assert "The contract holds." in worked(installed / "leakboard", "check", "scaled.py", cwd=elsewhere)


@pytest.mark.slow
def test_an_editable_install_adds_one_name_to_the_path(source: Path, tmp_path: Path) -> None:
    folder = environment(tmp_path / "editable")
    before = {path.name for path in (folder / SITE).iterdir()}
    python = folder / "bin" / "python"
    command = (*PIP, "--python", python, "install", "--no-deps", "--no-build-isolation", "--no-index", "--editable")
    worked(*command, source, cwd=tmp_path)

    place = worked(python, "-c", "import leakboard; print(leakboard.__file__)", cwd=tmp_path)
    assert Path(place.strip()) == source / "src" / "leakboard" / "__init__.py"
    added = {path.name for path in (folder / SITE).iterdir()} - before
    assert all(name.endswith((".dist-info", ".pth")) for name in added)
    importable = {path.stem for path in (source / "src").iterdir() if path.suffix != ".egg-info"}
    assert importable == {"leakboard"}
    assert do(python, "-c", "import defenses", cwd=tmp_path).returncode != 0
