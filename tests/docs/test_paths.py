"""Every path and every relative link in the documents leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakboard.core.registry import ROOT

OTHERS = ("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", ".github/PULL_REQUEST_TEMPLATE.md")
DOCUMENTS = [*(ROOT / name for name in OTHERS), *sorted((ROOT / "docs").glob("*.md"))]
TOP = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
#: a text in backticks that is one path below a top folder; patterns (`*`, `<name>`, `{a,b}`) are no paths
PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, TOP))})/[\w./+-]*)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def paths_in(text: str) -> Iterator[str]:
    yield from PATH.findall(text)


def links_in(text: str) -> Iterator[str]:
    for target in LINK.findall(text):
        if not re.match(r"[a-z]+:|#", target):
            yield target.partition("#")[0]


def test_paths_and_links_are_found() -> None:
    text = "See `docs/a.md`, `defenses/`, `x/y` and `docs/*.md`; [b](b.md#c), [d](https://e.f), [g](#h)."
    assert list(paths_in(text)) == ["docs/a.md", "defenses/"]
    assert list(links_in(text)) == ["b.md"]
    assert sum(1 for document in DOCUMENTS for _ in paths_in(document.read_text())) > 50


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_and_link_exists(document: Path) -> None:
    text = document.read_text()
    missing = [path for path in paths_in(text) if not (ROOT / path).exists()]
    missing += [link for link in links_in(text) if not (document.parent / link).exists()]
    assert not missing
