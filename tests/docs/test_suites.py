"""docs/suites.md and docs/cli.md name everything that there is."""

from __future__ import annotations

import re

from leakboard.core.registry import ROOT
from leakboard.suites import suite_files


def test_every_suite_is_in_the_table_and_nothing_else() -> None:
    text = (ROOT / "docs" / "suites.md").read_text().partition("## Data and models")[0]
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(named) == sorted(suite_files())
