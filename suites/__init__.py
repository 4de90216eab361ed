"""Suites: what to run, as YAML, validated before anything starts."""

from __future__ import annotations

from pathlib import Path

from leakboard.core.seeds import natural_order

if __name__ != "leakboard.suites":
    raise ImportError("import leakboard.suites: LeakBoard's code has no other name than `leakboard`.")


def suite_files() -> dict[str, Path]:
    """The suites of the checkout, by name. Imports nothing large, so that `list` and a finished run answer at once."""
    found = {path.stem: path for path in Path(__file__).parent.glob("*.yaml")}
    return {name: found[name] for name in natural_order(found)}


def suite_file(name_or_file: str) -> Path:
    """The file of a suite by name, or the named file, which may not exist."""
    return suite_files().get(name_or_file) or Path(name_or_file)
