"""The documents are plain English in short lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from leakboard.core.registry import ROOT

LONGEST = 120
#: documents that are not rewritten yet
NOT_YET = {
    "README.md",
    "docs/architecture.md",
    "docs/notebook.md",
}
#: documents that a command prints
GENERATED = {"docs/views.md"}
#: a phrase -> what to write in its place
FORBIDDEN = {
    r"errands?": "question",
    r"cages?": "attack process",
    r"occasions?": "round context",
    r"watch(es|ed|ing)?": "observed rounds",
    r"(one|a|an) (row|job|file|cell|card|folder|lock|table|key|gradient|network|record|number) an? "
    r"(defense|core|cell|round|client|class|model|metric|attack|training|goal|process|value|image)": "one ... per ...",
    r"told from (all|their) decoys": "distinguished from all decoys",
    r"nobody ties": "a defense is never tied",
    r"of the records are": "records are",
    r"what is there to take": "the next thing to optimise",
    r"all the same": "still",
    r"tuned on nobody": "tuned for none of them",
    r"where (it|the data|the file|they) lies?": "its location",
}
PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [name for path in PATHS if (name := str(path.relative_to(ROOT))) not in NOT_YET | GENERATED]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines outside code; a list's continuation is indented by less than four, or follows a line of text."""
    fenced, code, before = False, False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        else:
            code = line.startswith("    ") and (code or not before.strip())
            if not fenced and not code:
                yield number, line
        before = line


def too_long(text: str) -> list[int]:
    """The lines of prose over the limit; tables and lines that are one link or image may be longer."""
    exempt = re.compile(r"\||\s*(- )?!?\[[^\]]*\]\([^)]*\)\s*$")
    return [number for number, line in prose(text) if len(line) > LONGEST and not exempt.match(line)]


def forbidden(text: str) -> list[str]:
    """The phrases of a document that have a plainer form, with that form. Line breaks and code do not hide them."""
    words = re.sub(r"`[^`]*`", "`", " ".join(line.strip() for _, line in prose(text)))
    found = ((re.search(rf"\b({phrase})\b", words, flags=re.I), plain) for phrase, plain in FORBIDDEN.items())
    return [f"{match[0]!r}: write {plain!r}" for match, plain in found if match]


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_short(name: str) -> None:
    assert too_long((ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", NAMES)
def test_words_are_plain(name: str) -> None:
    assert forbidden((ROOT / name).read_text()) == []


def test_the_exceptions_exist() -> None:
    assert {str(path.relative_to(ROOT)) for path in PATHS} >= NOT_YET | GENERATED


def test_what_counts_as_a_long_line() -> None:
    long = "word " * 30
    assert too_long(long) == [1]
    assert too_long(f"- item\n  {long}") == [2]
    assert too_long(f"text\n    {long}") == [2]
    for fine in (f"```\n{long}\n```", f"text\n\n    make\n    {long}", f"| {long} |", f"![{long}](page.png)"):
        assert too_long(fine) == []


def test_what_counts_as_a_forbidden_phrase() -> None:
    assert forbidden("There is one\njob a core.") == ["'one job a core': write 'one ... per ...'"]
    assert forbidden("The Watch of a suite, and its errand.") != []
    assert forbidden("`task.place(occasion)` finds one job per core.") == []
