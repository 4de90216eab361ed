"""Our own plugins, as the contract is applied to them: each with small parameters, and the variants below."""

from __future__ import annotations

from typing import Any

from leakboard.attacks.base import Attack
from leakboard.contract.small import small
from leakboard.core import registry
from leakboard.defenses.base import Defense

#: settings under which a defense takes other steps than by default
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "mp-dp": [{"neighbours": 1}, {"variant": "V1", "mode": "corrected"}],
    "tp-smc": [{"crypto": "real"}],
    "pile": [{"crypto": "real", "variant": "V1"}],
    "hybridalpha": [{"keys": "shared"}],
}


def defenses() -> list[Defense]:
    """Every defense with small parameters, and the variants above."""
    found = []
    for name in registry.entries("defense"):
        plugin = registry.load("defense", name)
        assert issubclass(plugin, Defense)
        found += [small(plugin, **parameters) for parameters in [{}, *VARIANTS.get(name, [])]]
    return found


def attacks() -> list[Attack]:
    """Every attack with small parameters."""
    plugins = [registry.load("attack", name) for name in registry.entries("attack")]
    assert all(issubclass(plugin, Attack) for plugin in plugins)
    return [small(plugin) for plugin in plugins if issubclass(plugin, Attack)]


def title(defense: Defense) -> str:
    """The name of a defense with the parameters that differ from its defaults."""
    return f"{defense.name}-{'-'.join(map(str, defense.model_dump(exclude_defaults=True).values()))}".rstrip("-")
