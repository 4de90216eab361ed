"""The command line answers whatever is typed, or refuses it in one line with exit code 2."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakboard.core.errors import UserError
from leakboard.leaderboard.api import evaluate as evaluating
from leakboard.leaderboard.api import site as sites
from leakboard.leaderboard.cli import main as cli
from leakboard.leaderboard.cli.parser import LONGEST_SENTENCE
from leakboard.leaderboard.publishing import verify as verifying
from tests.fuzz.harness import RAN, REFUSED, examples, time_limit, writes_only_in
from tests.leaderboard.runs import forget_plugins

COMMANDS = ("run", "list", "table", "report", "show", "new", "check", "compare", "submit", "verify", "status", "site")
FLAGS = """--suite --defense --attack --seed --out --workers --device --dry-run --plugin --help --retry-failed
--fresh-keys --lpips-weights --format --all --phases --paper --target --to --executor --gpus-per-cell --json
--allow-dirty --data --mark -h -- - --unknown --format=md --seed=x"""
WORDS = """quick tiny.yaml broken.yaml nothing . .. fedsgd mp-dp prior shadow digits 1 -1 0 1e9 nan md csv json latex
html plugin.py exits.py odd.py odder.py broken.yaml/x run.json folder defenses attack my-idea ../x Name /dev/null
/dev/zero /proc/nowhere cpu cuda npz:x digits:x %s%n local ray 0.5"""
OPTIONS = tuple(FLAGS.split())
ODD = ("", " ", "\n", "\x1b[31m", "é", "\udcff", "x" * 300, "x" * 5000, "9" * 5000, "$(touch x)")
VALUES = (*WORDS.split(), *ODD)
#: faulty plugin files
PLUGINS = {
    "plugin.py": "x = 1",
    "exits.py": "raise SystemExit(0)",
    "odd.py": "from leakboard.core.plugins import Plugin\nclass X(Plugin):\n    'x'\n    name = 'x'\n",
    "odder.py": (
        "from typing import Any, Callable, ClassVar\nfrom leakboard.attacks.base import MembershipAttack\n"
        "class X(MembershipAttack):\n    'x'\n    name: ClassVar[Any] = 5\n    f: Callable[[], int] = print\n"
    ),
}


class Stopped(UserError):
    """A command reached the computation."""


def stop(*_: Any, **__: Any) -> Any:
    raise Stopped("It would be computed now.")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of all kinds. No command really computes there."""
    desk = tmp_path / "desk"  # `../x` is a place that a user may name
    desk.mkdir()
    monkeypatch.chdir(desk)
    monkeypatch.setattr(evaluating, "Engine", stop)
    monkeypatch.setattr(verifying, "Engine", stop)
    monkeypatch.setattr(sites, "open_run", stop)
    monkeypatch.setattr(subprocess, "run", stop)
    (desk / "folder").mkdir()
    (desk / "run.json").write_text("{}")
    (desk / "broken.yaml").write_text("name: [")
    (desk / "tiny.yaml").write_text("name: tiny")
    for name, text in PLUGINS.items():
        (desk / name).write_text(text)
    return desk


def typed(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code and both outputs, with a terminal's strict encoding."""
    forget_plugins()
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how) for how in ("strict", "backslashreplace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            code = cli.main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            forget_plugins()
    texts = []
    for stream in (out, err):
        stream.flush()
        buffer = stream.buffer
        assert isinstance(buffer, io.BytesIO)
        texts.append(buffer.getvalue().decode("utf-8"))
    return code, texts[0], texts[1]


def answers(arguments: list[str], desk: Path) -> str:
    RAN["command line"] += 1
    with time_limit(), writes_only_in(desk.parent):
        code, _, err = typed(arguments)
    assert code in (0, 2), (arguments, code, err)
    assert "Traceback" not in err
    if code == 2:
        REFUSED["command line"] += 1
        assert err.startswith("run_benchmark.py: "), err
        assert err.count("\n") == 1, err
        assert err.endswith("\n")
        assert err[:-1].isprintable()
        assert len(err) <= LONGEST_SENTENCE + 40
    return err


@examples(40)
@given(
    command=st.sampled_from(COMMANDS) | st.just(""),
    rest=st.lists(st.sampled_from((*OPTIONS, *VALUES, *VALUES)) | st.text(max_size=6), max_size=5),
)
def test_whatever_is_typed(desk: Path, command: str, rest: list[str]) -> None:
    answers([*([command] if command else []), *rest], desk)


PAIRS = st.lists(st.tuples(st.sampled_from(OPTIONS[:18]), st.sampled_from(VALUES)), max_size=3)


@examples(25)
@given(command=st.sampled_from(COMMANDS), first=st.sampled_from(VALUES), pairs=PAIRS, dry=st.booleans())
def test_whatever_is_typed_in_the_right_form(
    desk: Path, command: str, first: str, pairs: list[tuple[str, str]], dry: bool
) -> None:
    places = (
        [] if command in ("run", "table", "report", "site") else [first] * (2 if command in ("compare", "new") else 1)
    )
    answers([command, *places, *(part for pair in pairs for part in pair), *(["--dry-run"] if dry else [])], desk)


@pytest.mark.parametrize("name", list(PLUGINS))
def test_a_faulty_plugin_file(desk: Path, name: str) -> None:
    assert name in answers(["run", "--plugin", name, "--dry-run"], desk)
    assert name in answers(["check", name], desk)


@pytest.mark.parametrize("command", ["show", "table --out", "run --suite", "compare x", "run --lpips-weights"])
@pytest.mark.parametrize("path", ["x" * 5000, "folder", "/dev/zero", "\udcff", "broken.yaml/x"])
def test_paths_that_are_no_files(desk: Path, command: str, path: str) -> None:
    assert answers([*command.split(), path], desk)
