"""docs/suites.md and docs/cli.md name everything that there is."""

from __future__ import annotations

import re

from leakboard.core.registry import ROOT
from leakboard.suites import suite_files
from leakboard.suites.schema import load_suite


def test_every_suite_is_in_the_table_and_nothing_else() -> None:
    text = (ROOT / "docs" / "suites.md").read_text().partition("## Data and models")[0]
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(named) == sorted(suite_files())


def test_the_papers_own_attack_runs_in_every_main_board() -> None:
    """`quick` has no time for it and says so."""
    boards = ["digits", "cifar10-small", *(f"paper-{name}" for name in ("cifar10", "cifar100", "breakhis"))]
    for name in (*boards, *(f"{board}-100" for board in boards if board.startswith("paper-"))):
        assert "gifd" in {attack.name for attack in load_suite(name).attacks}, name
    assert "gifd" in suite_files()["quick"].read_text()
