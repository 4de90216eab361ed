"""Settings in words: what a JSON schema says of a parameter, its default and its range."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: keys of a JSON schema that bound a number, and how they are said
BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "a multiple of {}",
}
#: keys that bound a length, and what is counted
LENGTHS = {("minLength", "maxLength"): "characters", ("minItems", "maxItems"): "entries"}
KINDS = {"object": "mapping", "boolean": "true or false", "string": "text"}


class Setting(NamedTuple):
    """A setting: name, default as JSON, allowed values in words, meaning."""

    name: str
    default: str
    allowed: str
    meaning: str


def setting_of(name: str, schema: Mapping[str, Any]) -> Setting:
    """A parameter in words.

    >>> setting_of("clip", {"anyOf": [{"exclusiveMinimum": 0, "type": "number"}, {"type": "null"}], "default": 1.0})
    Setting(name='clip', default='1.0', allowed='number > 0, or null', meaning='')
    """
    default = json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else "required"
    return Setting(name, default, allowed_values(schema), str(schema.get("description", "")))


def allowed_values(schema: Mapping[str, Any]) -> str:
    """The type and the range of a JSON schema in words.

    >>> allowed_values({"enum": ["V1", "V2"], "type": "string"})
    '"V1" or "V2"'
    >>> allowed_values({"type": "integer", "minimum": 1, "exclusiveMaximum": 9})
    'integer ≥ 1, < 9'
    >>> allowed_values({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 9})
    'list of text; 1 to 9 entries'
    """
    if "anyOf" in schema:
        return ", or ".join(allowed_values(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("minimum") == -(2**63):
        return "integer of 64 bits"
    kind = str(schema.get("type", "any value"))
    kind = KINDS.get(kind, kind)
    if "items" in schema:
        kind = f"list of {allowed_values(schema['items'])}"
    bounds = [words.format(_number(schema[key])) for key, words in BOUNDS.items() if key in schema]
    more = [*_lengths(schema), *([f"of the form `{schema['pattern']}`"] if "pattern" in schema else [])]
    return "; ".join([f"{kind} {', '.join(bounds)}".strip(), *more])


def _lengths(schema: Mapping[str, Any]) -> Iterator[str]:
    """How long a text or a list may be."""
    for (least, most), what in LENGTHS.items():
        if least in schema and most in schema:
            yield f"{schema[least]} to {_number(schema[most])} {what}"
        elif most in schema:
            yield f"at most {_number(schema[most])} {what}"
        elif least in schema:
            yield f"at least {schema[least]} {what}"


def _number(value: float) -> str:
    """A bound: 1,000,000,000 and 0.5, not 1000000000.0."""
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
