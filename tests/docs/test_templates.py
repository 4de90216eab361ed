"""The templates for people: valid forms, that name only what exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from leakboard.core import registry
from leakboard.core.registry import ROOT
from leakboard.leaderboard.cli.options import COMMANDS

FOLDER = ROOT / ".github" / "ISSUE_TEMPLATE"
FORMS = sorted(path for path in FOLDER.glob("*.yml") if path.name != "config.yml")
PULL_REQUEST = ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"
KINDS = {"checkboxes", "dropdown", "input", "markdown", "textarea"}


def form(path: Path) -> dict[str, Any]:
    given: dict[str, Any] = yaml.safe_load(path.read_text())
    return given


def test_there_is_a_form_for_each_reason_to_write() -> None:
    assert [form(path)["name"] for path in FORMS] == [
        "A defense",
        "An attack",
        "My scheme is treated unfairly",
        "A bug",
    ]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_shows(path: Path) -> None:
    given = form(path)
    assert set(given) <= {"name", "description", "title", "labels", "body", "assignees"}
    assert all(isinstance(given[key], str) and given[key] for key in ("name", "description"))
    fields = [part for part in given["body"] if part["type"] != "markdown"]
    assert fields
    for part in given["body"]:
        assert part["type"] in KINDS
        assert ("value" if part["type"] == "markdown" else "label") in part["attributes"]
    ids = [part["id"] for part in fields]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]+", name) for name in ids)
    labels = [part["attributes"]["label"] for part in fields]
    assert len(set(labels)) == len(labels)
    assert any(part.get("validations", {}).get("required") for part in fields)


def test_the_attack_form_offers_every_goal() -> None:
    (goals,) = [part["attributes"]["options"] for part in form(FORMS[1])["body"] if part.get("id") == "goal"]
    assert set(goals) == {*registry.entries("goal"), "another one"}


@pytest.mark.parametrize("path", [*FORMS, PULL_REQUEST, ROOT / "CODE_OF_CONDUCT.md"], ids=lambda path: path.name)
def test_templates_name_only_files_and_commands_that_exist(path: Path) -> None:
    text = path.read_text()
    assert [name for name in re.findall(r"\bdocs/[\w-]+\.md", text) if not (ROOT / name).is_file()] == []
    known = {kind.name for kind in COMMANDS}
    assert set(re.findall(r"run_benchmark\.py ([a-z]+)", text)) <= known
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets
    assert "@" not in text  # no address that nobody reads
