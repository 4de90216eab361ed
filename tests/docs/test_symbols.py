"""Ψ, Φ and R are explained before they are used: by a link to the page that defines them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leakboard.core.registry import ROOT
from tests.docs.test_language import prose

HOME = "model-perturbation.md"
SYMBOL = re.compile(r"[ΨΦ]|\b(?:Psi|Phi)\b|(?<![A-Za-z])R(?![A-Za-z])")
DOCUMENTS = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != HOME]


def unexplained(text: str) -> str:
    """The first paragraph that uses a symbol, if the explanation is in no paragraph up to it."""
    lines = "\n".join(line for _, line in prose(text))
    explained = False
    for paragraph in re.split(r"\n\s*\n", lines):
        explained |= f"]({HOME})" in paragraph
        if SYMBOL.search(re.sub(r"`[^`]*`", "", paragraph)) and not explained:
            return paragraph
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_symbols_are_explained_before_they_are_used(path: Path) -> None:
    assert unexplained(path.read_text()) == ""


def test_the_check_sees_a_symbol_without_its_explanation() -> None:
    link = f"[x]({HOME})"
    assert unexplained(f"Clients send Ψ.\n\nSee {link}.") == "Clients send Ψ."
    assert unexplained("Given R, it is uniform.") != ""
    assert unexplained(f"Ψ ({link}) is sent.\n\nΨ again.") == ""
    assert unexplained("`R` and R² in code:\n\n    R = r s\n\nROC, RMIA") == "`R` and R² in code:"


def test_the_page_defines_each_symbol() -> None:
    rows = [line for line in (ROOT / "docs" / HOME).read_text().splitlines() if line.startswith("| **")]
    assert [re.findall(r"\*\*(\w)\*\*", row)[0] for row in rows] == ["R", "r", "Ψ", "Φ"]
