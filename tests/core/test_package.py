"""One name for our code: `leakboard`. The checkout itself is on nobody's path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakboard.core.registry import IMPORT_ROOT, ROOT
from leakboard.core.sources import PACKAGES


def python(*arguments: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with at most one folder on PYTHONPATH."""
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env = {**others, "PYTHONPATH": str(path)} if path is not None else others
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def test_the_checkout_is_not_on_the_path_of_the_tests() -> None:
    assert ROOT not in [Path(folder).resolve() for folder in sys.path]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_is_the_subpackage_of_its_name(package: str) -> None:
    assert (IMPORT_ROOT / "leakboard" / package).resolve() == ROOT / package


@pytest.mark.parametrize("package", PACKAGES)
def test_the_old_name_is_refused_in_one_sentence(package: str) -> None:
    done = python("-c", f"import {package}", cwd=ROOT, path=IMPORT_ROOT)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: import leakboard.{package}: LeakBoard's code has no other name than `leakboard`."


def test_run_benchmark_leaves_the_name_datasets_to_other_libraries(tmp_path: Path) -> None:
    library = tmp_path / "site" / "datasets"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("WHO = 'the library'\n")
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import datasets\nraise SystemExit('found ' + datasets.WHO)\n")
    done = python(
        str(ROOT / "run_benchmark.py"), "run", "--plugin", str(plugin), "--dry-run", cwd=ROOT, path=library.parent
    )
    assert "found the library" in done.stderr, done.stderr
