"""Tiny suites, and the command line called as a user would, for the tests of whole runs."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from leakboard.core import registry
from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.page.charts.base import Chart
from leakboard.leaderboard.page.charts.collect import Drawn, save_charts
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.leaderboard.records.record import Record

TINY: dict[str, Any] = {
    "name": "tiny",
    "datasets": ["digits"],
    "model": {"name": "mlp", "params": {"hidden": [8]}},
    "training": {"rounds": 4, "batch_size": 4, "clients": 3},
    "observe": {"rounds": ["first", "last"], "targets": 2},
    "defenses": ["fedsgd"],
    "attacks": [
        {"name": "prior", "threats": ["server"]},
        {"name": "inverting-gradients", "threats": ["server"], "params": {"iterations": 3}},
        {"name": "loss-threshold", "threats": ["client"]},
        {"name": "shadow", "threats": ["client"], "params": {"shadows": 1}},
    ],
    "time_limit": 3600,  # on a busy machine too, only what hangs takes so long
}
TINY_CELLS = 6
#: seconds after which a test gives up waiting for something that has to happen: only what hangs takes so long
HANG = 900.0


def write_suite(folder: Path, **changes: Any) -> Path:
    """A suite file: `TINY` with some settings changed; `training__rounds=2` reaches inside."""
    suite = deepcopy(TINY)
    for name, value in changes.items():
        *outer, last = name.split("__")
        place = suite
        for key in outer:
            place = place[key]
        place[last] = value
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(suite), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Outcome:
    """What a call of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def began(self) -> str:
        """The first line of the progress: how many cells were there already."""
        return self.err.splitlines()[0]


@contextlib.contextmanager
def few_charts(most: int = 1) -> Iterator[None]:
    """Pages that are written in this block have at most so many charts: all of them take half of a tiny run's time."""

    def few(folder: Path, given: Iterable[Chart]) -> list[Drawn]:
        return save_charts(folder, list(given)[:most])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("leakboard.leaderboard.page.page.save_charts", few)
        yield


def call(*arguments: object, charts: bool = False) -> Outcome:
    """The command line in this process, as a new one would see it: no plugin file loaded yet.

    A page that it writes has one chart, unless all of them are asked for.
    """
    forget_plugins()
    out, err = io.StringIO(), io.StringIO()
    drawn = contextlib.nullcontext() if charts else few_charts()
    with drawn, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        finally:
            forget_plugins()
    return Outcome(code, out.getvalue(), err.getvalue())


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that has to happen, however long it takes on a busy machine."""
    limit = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < limit, "it hangs"
        time.sleep(0.01)


def forget_plugins() -> None:
    """Unload the files of `--plugin`."""
    registry._loaded_files.clear()
    for name in [name for name in sys.modules if name.startswith("leakboard_plugin_")]:
        del sys.modules[name]


def records(folder: Path) -> dict[str, Record]:
    """The records of a run by the readable name of their cell."""
    found = open_run(folder).records
    by_name = {record.cell.slug: record for record in found}
    assert len(by_name) == len(found)
    return by_name


def comparable(folder: Path) -> dict[str, dict[str, Any]]:
    """What must be equal for equal runs."""
    return {name: record.comparable() for name, record in records(folder).items()}


def stamps(folder: Path, pattern: str) -> dict[str, int]:
    """When every file of a run that fits the pattern was last written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.glob(pattern)}
