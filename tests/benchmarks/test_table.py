"""The table of `make bench`: figures where there are some, and an honest word where there are none."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks._ratio import NOT_INSTALLED, PEERS, add_parts, line
from leakboard.core.registry import ROOT


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark of this test's own."""
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    return tmp_path / "benchmarks" / "own.py"


OWN = bench.Benchmark("own.py", (), None)


def test_rows_are_what_the_script_printed(script: Path) -> None:
    printed = [
        line("a", 4.0, 2.0, "x / s", 1.8, at_most=False),
        line("b", 4.0, 2.0, "s", 1.8),
        line("c", 1.0, 2.0, "s"),
    ]
    script.write_text("print('warming up')\n" + "".join(f"print({text!r})\n" for text in printed))
    rows = bench.measure(OWN, (), install=False)
    assert [bench.shown(row).split("|")[-3:-1] for row in rows] == [
        [" 2 ", " ≥ 1.8 met "],
        [" 2 ", " ≤ 1.8 missed "],
        [" 0.5 ", "   "],
    ]


def test_a_missing_peer_is_no_failure(script: Path) -> None:
    script.write_text(f"import sys\nprint('the peer phe', file=sys.stderr)\nsys.exit({NOT_INSTALLED})\n")
    (row,) = bench.measure(OWN, (), install=False)
    assert bench.shown(row) == "| the peer phe | | | | | not installed |"


def test_a_script_that_breaks_is_one(script: Path) -> None:
    script.write_text(f"print({line('a', 1.0, 2.0, 's')!r})\nraise ValueError('no good')\n")
    first, second = bench.measure(OWN, (), install=False)
    assert first["name"] == "a"
    assert second["missing"] == "failed"
    assert "ValueError: no good" in bench.shown(second)


@pytest.mark.parametrize("install", [True, False])
def test_scripts_are_told_whether_they_may_install(script: Path, install: bool) -> None:
    script.write_text(f"import os, json\nprint(json.dumps({{'name': os.environ[{PEERS!r}], 'missing': ''}}))\n")
    (row,) = bench.measure(OWN, (), install)
    assert row["name"] == ("install" if install else "installed")


def test_a_peer_that_is_not_there_ends_the_script(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from benchmarks import _ratio; "
        f"_ratio.ENVIRONMENTS = Path({str(tmp_path)!r}); _ratio.peer_python('nobody', 'no-such-package==1')"
    )
    env = {**os.environ, PEERS: "installed"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (NOT_INSTALLED, "the peer nobody\n")
    assert not list(tmp_path.iterdir())


def test_every_benchmark_of_the_table_is_there() -> None:
    assert all((ROOT / "benchmarks" / one.script).is_file() for one in bench.BENCHMARKS.values())


def test_names_of_parts_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_parts(parser, "one", "two")
    assert parser.parse_args([]).parts == []
    assert parser.parse_args(["two", "one"]).parts == ["two", "one"]
    with pytest.raises(SystemExit):
        parser.parse_args(["three"])
    assert "'three' is no part: allowed are one, two" in capsys.readouterr().err


def test_a_line_says_which_way_is_better() -> None:
    assert json.loads(line("a", 3.0, 2.0, "s", 2.0))["ok"]
    assert not json.loads(line("a", 3.0, 2.0, "s", 2.0, at_most=False))["ok"]
