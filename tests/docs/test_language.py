"""The documents, docstrings and comments are plain English; the documents and suites have short lines."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping

import pytest

from leakboard.core.registry import ROOT
from leakboard.core.sources import PACKAGES

LONGEST = 120
#: documents that a command prints
GENERATED = {"docs/views.md", "docs/suites-reference.md"}
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
_THING = (
    r"(row|job|file|cell|folder|lock|table|key|gradient|network|record|number|value|code|law|problem|thread|share|label"
    r"|direction|column|image|list|line|entry|point|probe|guess|block|turn|pass|message|group|word|bar|batch)"
)
_EACH = (
    r"(defense|core|cell|round|client|class|model|metric|attack|training|goal|process|value|image|record|problem|probe"
    r"|stage|party|parameter|channel|item|seed|file|row|column|edge|epoch|size|threat|target|plaintext|dataset|metric)"
)
#: the same for docstrings and comments
FORBIDDEN_IN_CODE = FORBIDDEN | {
    rf"(one|two|three|an?) {_THING}s? an? {_EACH}": "one ... per ...",
    r"(?<!many )(images|records|pictures|members|minutes|ms|bits|blocks|steps|batches|bytes|codes|copies|times) an? "
    r"(class|client|round|channel|seed|epoch|process|cell|core|image|stage|model|record|pixel|plaintext|batch)": "per",
    r"once an? (process|round|epoch|client|cell|run|pair|dataset|data set)": "once per ...",
    r"found by being there": "found automatically",
    r"of equal (ones|logits|scores)": "if several are equal",
    r"in place of": "instead of",
    r"goes along( with)?": "is correlated with",
    r"(stands?|lies?|lying) beside": "is next to",
    r"stands? in (no|the|every|each) (record|details|column|file|table|folder)s?": "is in",
    r"holds? no numbers": "is not finite",
    r"(of|with|by|from|at most|at least) so many": "this many",
    r"(one|each) behind the other": "concatenated",
    r"(can|could|cannot) be had": "is available",
    r"less (what|those|its own|their own)": "without",
    r"who is whose": "the neighbours of each",
    r"to both sides": "in both directions",
}
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", ".github/PULL_REQUEST_TEMPLATE.md")
PATHS = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [name for path in PATHS if (name := str(path.relative_to(ROOT))) not in GENERATED]

MODULES = [str(path.relative_to(ROOT)) for folder in PACKAGES for path in sorted((ROOT / folder).rglob("*.py"))]
SUITES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "suites").glob("*.yaml"))]


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
    return phrases(" ".join(line.strip() for _, line in prose(text)), FORBIDDEN)


def phrases(text: str, table: Mapping[str, str]) -> list[str]:
    """The phrases of the table that a text without line breaks has outside backticks, with their plainer form."""
    words = re.sub(r"`[^`]*`", "`", text)
    found = ((re.search(rf"\b({phrase})\b", words, flags=re.I), plain) for phrase, plain in table.items())
    return [f"{match[0]!r}: write {plain!r}" for match, plain in found if match]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a module with their first lines; each on one line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, " ".join(text.split())


def comments(source: str) -> Iterator[tuple[int, str]]:
    """The comments of a module with their first lines; a comment over several lines is one text."""
    found: list[tuple[int, list[str]]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("#: ")
            if found and line == found[-1][0] + len(found[-1][1]):
                found[-1][1].append(text)
            else:
                found.append((line, [text]))
    return ((line, " ".join(texts)) for line, texts in found)


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_short(name: str) -> None:
    assert too_long((ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", NAMES)
def test_words_are_plain(name: str) -> None:
    assert forbidden((ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_and_comments_are_plain(name: str) -> None:
    source = (ROOT / name).read_text()
    texts = (*docstrings(source), *comments(source))
    assert [f"line {line}: {fault}" for line, text in texts for fault in phrases(text, FORBIDDEN_IN_CODE)] == []


@pytest.mark.parametrize("name", SUITES)
def test_comments_of_suites_are_plain_and_short(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line.startswith("#")]
    assert phrases(" ".join(line.lstrip("# ") for line in lines), FORBIDDEN_IN_CODE) == []
    assert [line for line in lines if len(line) > LONGEST] == []


def test_the_exceptions_exist() -> None:
    assert {str(path.relative_to(ROOT)) for path in PATHS} >= GENERATED


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


def test_what_counts_as_prose_of_a_module() -> None:
    source = """'''One row\na defense.'''\n\n#: one file\n#: a cell\nx = "one job a core"  # in place of y\n"""
    assert [phrases(text, FORBIDDEN_IN_CODE) for _, text in docstrings(source)] == [
        ["'One row a defense': write 'one ... per ...'"] * 2
    ]
    assert [(line, text) for line, text in comments(source)] == [(4, "one file a cell in place of y")]


@pytest.mark.parametrize(
    "text",
    [
        "Records that a client sent, a row of a defense, and one value per item.",
        "one number and a class; the code a defense runs; so many that it does not fit",
        "The first image in place, `in place of` code, a record or a job",
        "How many records a client needs.",
    ],
)
def test_plain_text_is_not_forbidden(text: str) -> None:
    assert phrases(text, FORBIDDEN_IN_CODE) == []
