"""docs/suites-reference.md is what the schema says today."""

from __future__ import annotations

import re

import yaml

from leakboard.core.registry import ROOT
from leakboard.leaderboard.cli.suites_doc import EXAMPLE, MEANINGS, PARTS, suites_markdown
from leakboard.suites.schema import Suite, parse_suite

TEXT = (ROOT / "docs" / "suites-reference.md").read_text()


def sections() -> dict[str, list[list[str]]]:
    """Part of the schema -> the cells of its rows."""
    found = {}
    for part, title in PARTS.items():
        body = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = [line for line in body.splitlines() if line.startswith("| `")]
        found[part] = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]
    return found


def test_the_document_is_up_to_date() -> None:
    assert suites_markdown().rstrip() + "\n" == TEXT, "run `make docs`"


def test_every_key_has_a_row_with_a_default_a_range_and_a_meaning() -> None:
    schema = Suite.model_json_schema()
    for part, rows in sections().items():
        properties = schema["properties"] if part == "Suite" else schema["$defs"][part]["properties"]
        assert [row[0].strip("`") for row in rows] == list(properties), part
        assert all(len(row) == 4 and all(row) for row in rows), part


def test_no_meaning_is_left_over() -> None:
    schema = Suite.model_json_schema()
    parts = {"Suite": schema, **schema["$defs"]}
    bare = {f"{p}.{key}" for p, s in parts.items() for key, v in s["properties"].items() if "description" not in v}
    named = {name for name in MEANINGS if not name.startswith("*.")}
    assert named <= bare
    assert {f"*.{name.partition('.')[2]}" for name in bare - named} == set(MEANINGS) - named


def test_the_example_is_a_suite_and_shows_defaults_that_hold() -> None:
    suite = parse_suite(yaml.safe_load(EXAMPLE), "The example")
    assert EXAMPLE in TEXT
    rows = {row[0].strip("`"): row[1].strip("`") for row in sections()["Suite"]}
    for key in ("utility_gate", "decoys", "time_limit", "memory_limit"):
        assert float(rows[key]) == getattr(suite, key), key


def test_plugins_are_listed_with_their_parameters() -> None:
    block = TEXT.partition("**`mp-dp`**")[2].partition("**`")[0]
    assert re.search(r"\| `variant` \| `\"V2\"` \| \"V1\" or \"V2\" \|", block)
    assert "| `clip` | `1.0` | number > 0, or null |" in block
