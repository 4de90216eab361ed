"""Which plugins and suites there are. Imports no torch, so that `list` answers at once."""

from __future__ import annotations

from typing import Any

from leakboard.core import registry
from leakboard.core.errors import unknown_name
from leakboard.suites import suite_files

#: what a user calls the kinds of plugins
KINDS = {
    "defenses": "defense",
    "attacks": "attack",
    "datasets": "dataset",
    "models": "model",
    "metrics": "metric",
    "goals": "goal",
    "rankings": "ranking",
}


def load_installed() -> None:
    """Load the plugins that installed packages offer by entry points."""
    for file in registry.installed_files():
        registry.load_file(file)


def plugins(kind: str) -> list[dict[str, Any]]:
    """All plugins of a kind, or all suites: name, summary, citation, parameters with defaults and bounds.

    >>> [plugin["name"] for plugin in plugins("models")][:2]
    ['convnet', 'mlp']
    """
    if kind == "suites":
        return suites()
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown_name("kind of plugin", str(kind), [*KINDS, "suites"])
    load_installed()
    return list(registry.entries(KINDS[kind]).values())


def suites() -> list[dict[str, Any]]:
    """The suites that come along, with their descriptions; read without the machinery of a run."""
    import yaml

    found = []
    for name, file in suite_files().items():
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
        summary = str(given.get("description", "")) if isinstance(given, dict) else ""
        found.append({"name": name, "kind": "suite", "summary": summary, "file": f"suites/{file.name}"})
    return found


assert set(KINDS.values()) == set(registry.FOLDERS)
