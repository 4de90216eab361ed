"""Plugins with parameters that make them small enough for a contract: few iterations, short keys."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

from pydantic import ValidationError

from leakboard.core.explaining import explain
from leakboard.core.plugins import Plugin

P = TypeVar("P", bound=Plugin)

#: parameters that decide how long a plugin works, by the names that ours have; a plugin without them keeps its defaults
SMALL: dict[str, Any] = {
    "iterations": 3,
    "restarts": 2,
    "shadows": 1,
    "models": 4,
    "references": 1,
    "hidden": (4,),
    "units": 16,
    "epochs": 2,
    "samples": 200,
    "local": 16,
    "key_bits": 256,
    "sample_values": 6,
}


def small(plugin: type[P], **given: Any) -> P:
    """An instance with `given` parameters, small ones where it has them, and its defaults otherwise."""
    known = {name: value for name, value in SMALL.items() if name in plugin.model_fields}
    try:
        return plugin.model_validate({**known, **given})
    except ValidationError as error:  # a parameter of that name has other bounds or another type than ours
        refused = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
        known = {name: value for name, value in known.items() if name not in refused}
    with suppress(ValidationError):
        return plugin.model_validate({**known, **given})
    try:
        return plugin.model_validate(given)
    except ValidationError as error:
        what = f"The {plugin.kind} '{plugin.name}' cannot be made with its defaults, so it cannot be checked"
        raise explain(error, what, plugin) from None
