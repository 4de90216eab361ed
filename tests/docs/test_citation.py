"""CITATION.cff keeps the rules of the Citation File Format 1.2.0, and agrees with the package.

The rules are those of the format's schema guide for the keys that a file like ours can have.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from leakboard.core.registry import ROOT

REQUIRED = {"authors", "cff-version", "message", "title"}
TEXTS = {"abstract", "cff-version", "commit", "doi", "license", "message", "title", "version"}
ADDRESSES = {"license-url", "repository", "repository-artifact", "repository-code", "url"}
LISTS = {"authors", "contact", "identifiers", "keywords", "references"}
KNOWN = REQUIRED | TEXTS | ADDRESSES | LISTS | {"date-released", "preferred-citation", "type"}
PERSON = {"address", "affiliation", "alias", "city", "country", "email", "family-names", "fax", "given-names"}
PERSON |= {"name-particle", "name-suffix", "orcid", "post-code", "region", "tel", "website"}
ENTITY = {"address", "alias", "city", "country", "date-end", "date-start", "email", "fax", "location", "name", "orcid"}
ENTITY |= {"post-code", "region", "tel", "website"}
#: of a reference: required, and the others that we may use
REFERENCE = {"authors", "title", "type"}
MORE = {"doi", "identifiers", "journal", "month", "notes", "publisher", "url", "volume", "year", "date-published"}
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
IDENTIFIERS = {"doi", "other", "swh", "url"}


def faults(given: Any) -> Iterator[str]:
    """What in a citation breaks the format, each in a few words."""
    if not isinstance(given, Mapping):
        yield "it is no mapping"
        return
    yield from (f"{key} is missing" for key in sorted(REQUIRED - set(given)))
    yield from (f"{key} is unknown" for key in sorted(set(given) - KNOWN))
    if given.get("cff-version") != "1.2.0":
        yield "cff-version is not 1.2.0"
    if given.get("type", "software") not in ("software", "dataset"):
        yield "type is neither software nor dataset"
    for key in sorted(TEXTS & set(given)):
        if not isinstance(given[key], str) or not given[key].strip():
            yield f"{key} is no text"
    for key in sorted(ADDRESSES & set(given)):
        if not re.fullmatch(r"(https?|ftp|sftp)://\S+", str(given[key])):
            yield f"{key} is no address"
    for key in sorted(LISTS & set(given)):
        if not isinstance(given[key], list) or not given[key]:
            yield f"{key} is no list with entries"
    if not DATE.fullmatch(str(given.get("date-released", "2026-01-01"))):  # YAML makes a date of it, or keeps the text
        yield "date-released is no date of the form YYYY-MM-DD"
    if len(set(given.get("keywords", ()))) < len(given.get("keywords", ())):
        yield "a keyword is there twice"
    for author in [*given.get("authors", ()), *given.get("contact", ())]:
        yield from _author(author)
    for reference in given.get("references", ()):
        yield from _reference(reference)


def _author(author: Any) -> Iterator[str]:
    """A person, or an entity, which has a name."""
    keys = set(author) if isinstance(author, Mapping) else {""}
    allowed = ENTITY if "name" in keys else PERSON
    if not keys or keys - allowed or not all(isinstance(value, str) for value in dict(author).values()):
        yield f"an author is neither a person nor an entity: {sorted(keys)}"


def _reference(reference: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"a reference lacks {key}" for key in sorted(REFERENCE - set(reference)))
    yield from (f"a reference has the unknown {key}" for key in sorted(set(reference) - REFERENCE - MORE))
    for author in reference.get("authors", ()):
        yield from _author(author)
    for identifier in reference.get("identifiers", ()):
        if identifier.get("type") not in IDENTIFIERS or not isinstance(identifier.get("value"), str):
            yield "an identifier has no known type or no value"
    if not isinstance(reference.get("year", 0), int):
        yield "the year of a reference is no number"


def ours() -> dict[str, Any]:
    given: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    return given


def test_our_citation_is_valid() -> None:
    assert list(faults(ours())) == []


def test_it_agrees_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ours()["version"] == project["version"]
    assert ours()["license"] == project["license"]


def test_the_paper_is_the_one_that_the_readme_names() -> None:
    (paper,) = ours()["references"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert paper["url"] in readme
    assert " ".join(paper["title"].split()) in readme


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"message": None}, "message is no text"),
        ({"cff-version": 1.2}, "cff-version is not 1.2.0"),
        ({"authors": []}, "authors is no list with entries"),
        ({"authors": [{"name": "A", "given-names": "B"}]}, "neither a person nor an entity"),
        ({"version": 0.1}, "version is no text"),
        ({"date-released": "18.11.2026"}, "date-released is no date"),
        ({"type": "benchmark"}, "type is neither"),
        ({"url": "leakboard"}, "url is no address"),
        ({"licence": "Apache-2.0"}, "licence is unknown"),
        ({"keywords": ["a", "a"]}, "a keyword is there twice"),
        ({"references": [{"type": "article", "title": "x"}]}, "a reference lacks authors"),
    ],
)
def test_the_check_sees_faults(change: dict[str, Any], fault: str) -> None:
    assert any(fault in found for found in faults({**ours(), **change}))


def test_a_released_version_may_have_its_date() -> None:
    for date in ("2026-11-18", yaml.safe_load("2026-11-18")):
        assert list(faults({**ours(), "date-released": date})) == []
    without = {key: value for key, value in ours().items() if key != "title"}
    assert list(faults(without)) == ["title is missing"]
