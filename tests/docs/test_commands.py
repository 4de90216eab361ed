"""Every command in the documents can be typed: it parses, and its suites, plugins, targets and files exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakboard.core import registry
from leakboard.core.registry import ROOT
from leakboard.leaderboard.cli.options import RunOptions
from leakboard.leaderboard.cli.parser import parse
from leakboard.suites import suite_files
from leakboard.suites.schema import load_suite

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: a command in the middle of a sentence, without the program
INLINE = re.compile(r"`(run --suite [^`]*)`")
COMMAND = re.compile(r"(?:\.venv/bin/python )?(?:run_benchmark\.py|^leakboard) (.*)")
MODULE = re.compile(r"`(\w+\.py)`")
PROGRAM = re.compile(r"\.venv/bin/python ((?:benchmarks|docs)/\w+\.py)")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
#: files that the reader is about to write, or that a run writes
YOURS = {"my_idea.py", "my_attack.py", "my_defense.py", "my_metric.py", "my_goal.py", "noisy_gradient.py", "plugin.py"}


def code_lines(text: str) -> Iterator[str]:
    """The lines of code blocks, without comments; a line that ends in a backslash goes on."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        if line.startswith("    "):
            yield line.strip().partition("  #")[0].strip()


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command for LeakBoard in a text."""
    for line in code_lines(text):
        if (found := COMMAND.match(line)) and "COMMAND" not in line:
            yield shlex.split(found[1].partition(" > ")[0])  # the shell writes the output to a file
    for found in INLINE.finditer(text):
        if "NAME" not in found[1] and "…" not in found[1]:
            yield shlex.split(found[1])


def faults(words: list[str]) -> Iterator[str]:
    """What is wrong with a command, beside what the parser refuses."""
    asked = parse(words)
    if not isinstance(asked, RunOptions):
        return
    ours = asked.suite in suite_files()
    if not ours and not asked.suite.endswith(".yaml"):
        yield f"there is no suite {asked.suite}"
    suite = load_suite(asked.suite) if ours else None
    for kind, names in (("defense", asked.defense), ("attack", asked.attack)):
        labels = {entry.title for entry in getattr(suite, f"{kind}s")} if suite else set()
        known = {*labels, *registry.entries(kind), *YOURS}
        yield from (f"there is no {kind} {name}" for name in names if name not in known)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_can_be_typed(path: Path) -> None:
    text = path.read_text()
    wrong = [f"{' '.join(words)}: {fault}" for words in commands(text) for fault in faults(words)]
    made = [line.split()[1] for line in code_lines(text) if re.match(r"make [a-z-]+", line)]
    wrong += [f"make {target}" for target in made if target not in TARGETS]
    wrong += [name for line in code_lines(text) for name in PROGRAM.findall(line) if not (ROOT / name).is_file()]
    assert wrong == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_that_is_named_exists(path: Path) -> None:
    there = {file.name for file in ROOT.rglob("*.py") if ".venv" not in file.parts}
    assert set(MODULE.findall(path.read_text())) - there - YOURS == set()


def test_the_checks_see_faults() -> None:
    assert list(commands("See `run --suite quik`, `run --suite NAME`.")) == [["run", "--suite", "quik"]]
    text = "Text\n\n    .venv/bin/python run_benchmark.py run --suite quik \\\n      --defense nobody   # why\n"
    (words,) = commands(text)
    assert words == ["run", "--suite", "quik", "--defense", "nobody"]
    assert list(faults(words)) == ["there is no suite quik", "there is no defense nobody"]
    with pytest.raises(SystemExit):
        list(faults(["tables"]))
    assert sum(1 for path in DOCUMENTS for _ in commands(path.read_text())) > 50
