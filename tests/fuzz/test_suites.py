"""Suite files: random text, real suites with changes, and files that would take all memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from leakboard.leaderboard.planning.plan import Options, make_plan, select
from leakboard.suites import suite_files
from leakboard.suites.schema import load_suite
from tests.fuzz.harness import broken_bytes, examples, mutated, survives
from tests.leaderboard.runs import TINY

#: pieces of YAML that mean something to its parser
PIECES = (
    *("name: x\n", "a: &a [1, 2]\n", "b: *a\n", "<<: *a\n", "*c\n", "~\n", "seeds: [0]\n", "training: {rounds: 1}\n"),
    *(
        "- ",
        "  ",
        "\t",
        "{",
        "}",
        "[",
        "]",
        ": ",
        ", ",
        "? ",
        "| \n",
        "&b ",
        "*b ",
        "'",
        '"',
        "\\",
        "#",
        "\x85",
        "\ufeff",
    ),
    *("!!python/object/apply:os.system ['touch pwned']\n", "!!python/name:os.system ", "!!set {a, b}\n"),
    *("!!binary 'AAAA' ",),
    *(
        "!!set {a, b}\n",
        "!!int 'x' ",
        "!!float '.nan' ",
        "!!timestamp 2020-01-01 ",
        "!!omap [a: 1] ",
        "!!pairs [a: 1] ",
    ),
    *(
        "--- \n",
        "...\n",
        "%YAML 9.9\n",
        "%TAG ! x\n",
        '"\\ud800"',
        "2020-99-99 ",
        "1:99:99 ",
        "1_000 ",
        "1e999 ",
        ".inf ",
    ),
    *("0x" + "f" * 40, "9" * 5000),
)
REAL = {name: path.read_text(encoding="utf-8") for name, path in suite_files().items()}


def load(text: str | bytes, folder: Path) -> Any:
    path = folder / "suite.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    found = load_suite(str(path))
    return select(found, [], [], [], [])


@examples(25)
@given(pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=25))
def test_random_text(tmp_path: Path, pieces: list[str]) -> None:
    survives("suite: text", lambda: load("".join(pieces), tmp_path), tmp_path)
    assert not (tmp_path / "pwned").exists()
    assert not Path("pwned").exists()


@examples(25)
@given(name=st.sampled_from(sorted(REAL)), data=st.data())
def test_a_real_suite_with_places_changed(tmp_path: Path, name: str, data: st.DataObject) -> None:
    changed = mutated(data.draw, yaml.safe_load(REAL[name]))
    survives("suite: mutated", lambda: load(yaml.safe_dump(changed), tmp_path), tmp_path)


@examples(25)
@given(name=st.sampled_from(sorted(REAL)), data=st.data())
def test_a_real_suite_with_bytes_changed(tmp_path: Path, name: str, data: st.DataObject) -> None:
    changed = broken_bytes(data.draw, REAL[name].encode())
    survives("suite: bytes", lambda: load(changed, tmp_path), tmp_path)


@examples(10, slower=4)
@given(data=st.data())
def test_a_small_suite_with_places_changed_gets_a_plan_or_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    changed = mutated(data.draw, TINY)
    survives(
        "suite: plan",
        lambda: make_plan(load(yaml.safe_dump(changed), tmp_path), Options(run=tmp_path / "run")),
        tmp_path,
    )
    assert not (tmp_path / "run").exists()


BOMBS = {
    "aliases": "a: &a [x, x]\n"
    + "".join(f"b{i}: &b{i} [{', '.join(['*' + (f'b{i - 1}' if i else 'a')] * 9)}]\n" for i in range(12)),
    "merges": "a: &a {x: 1}\n"
    + "".join(f"b{i}: &b{i} {{<<: [{', '.join(['*' + (f'b{i - 1}' if i else 'a')] * 9)}]}}\n" for i in range(12)),
    "one entry very often": "attacks:\n- &a {name: prior, threats: [" + "server," * 9000 + "]}\n" + "- *a\n" * 9000,
    "an alias to itself": "training: &x {a: *x, b: [*x, *x]}",
    "a merge of itself": "training: &x {<<: *x}",
    "deep lists": "a: " + "[" * 20_000,
    "deep mappings": "{a: " * 20_000,
    "a long key": "x" * 150_000 + ": 1",
    "a long name": "name: " + "x" * 150_000,
    "many keys": "".join(f"k{i}: 1\n" for i in range(9000)),
    "many seeds": "seeds: [" + ", ".join(map(str, range(20_000))) + "]",
}


@pytest.mark.parametrize("bomb", list(BOMBS))
def test_bombs(tmp_path: Path, bomb: str) -> None:
    assert survives("suite: bombs", lambda: load(BOMBS[bomb], tmp_path), tmp_path) is None
