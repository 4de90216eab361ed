"""Rules for plugins of every kind."""

from __future__ import annotations

import json

from leakboard.contract.checking import Broken
from leakboard.core.plugins import Plugin


def check_says_what_it_is(plugin: Plugin) -> None:
    """It says what it is: a docstring, for defenses and attacks a citation, for a defense a claim."""
    wanted = {"docstring": plugin.summary()}
    if plugin.kind in ("defense", "attack"):
        wanted["`citation`"] = plugin.citation
    if plugin.kind == "defense":
        wanted["`claim`"] = plugin.describe()["claim"]
    missing = [what for what, text in wanted.items() if not text]
    if missing:
        raise Broken(f"The class '{type(plugin).__name__}' has no {' and no '.join(missing)}.")


def check_parameters_survive_json(plugin: Plugin) -> None:
    """Its parameters are the same after a way through JSON, because a record keeps them so."""
    given = plugin.parameters()
    again = type(plugin).model_validate(json.loads(json.dumps(given, allow_nan=False))).parameters()
    changed = [name for name in given if given[name] != again.get(name)]
    if changed:
        raise Broken(f"The parameter '{changed[0]}' was {given[changed[0]]!r} and is {again.get(changed[0])!r}.")
