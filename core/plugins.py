"""The plugin contract shared by defenses, attacks, datasets, models and metrics.

A plugin is a class: its fields are its parameters (with defaults and bounds), its class variables give its name, and
the first line of its docstring is its summary. Instances are frozen, so one object can be given to every party without
becoming a channel between them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from leakboard.core.explaining import explain


class Settings(BaseModel):
    """Frozen, closed settings: unknown keys are refused, and numbers must be finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, given: Mapping[str, Any], what: str) -> Self:
        """Build from a mapping; a mistake becomes a `UserError` that starts with `what`."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            raise explain(error, what, cls) from None


class Plugin(Settings):
    """Base of all plugins. Subclasses that set `name` are found automatically."""

    kind: ClassVar[str]
    name: ClassVar[str]
    citation: ClassVar[str] = ""
    #: other names under which the plugin is found; records and tables use `name`
    aliases: ClassVar[tuple[str, ...]] = ()
    #: the parameter that `name:VALUE` sets (for example the path in `npz:FILE`), if there is one
    shorthand: ClassVar[str] = ""
    #: parameters that only give a location on this machine: they are not part of records and keys
    location_fields: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(cls) or "").split("\n", 1)[0].strip()

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What `list --json` prints: name, kind, summary, citation, parameters."""
        properties = cls.model_json_schema().get("properties", {})
        return {
            "name": cls.name,
            "kind": cls.kind,
            "summary": cls.summary(),
            "citation": cls.citation,
            "aliases": list(cls.aliases),
            "shorthand": cls.shorthand,
            "parameters": {
                field: {k: v for k, v in schema.items() if k not in ("title",)} for field, schema in properties.items()
            },
        }

    def parameters(self) -> dict[str, Any]:
        """All validated parameters as plain JSON values."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """The parameters that define what the plugin does: all except the locations."""
        return self.model_dump(mode="json", exclude=set(self.location_fields))

    def location(self) -> dict[str, Any]:
        """The parameters that only give a location on this machine."""
        return self.model_dump(mode="json", include=set(self.location_fields))


def is_plugin(value: object, kind: str | None = None) -> bool:
    """Whether a value is a concrete plugin class (of this kind): one that sets `name` itself."""
    return (
        inspect.isclass(value)
        and issubclass(value, Plugin)
        and "name" in value.__dict__
        and (kind is None or value.kind == kind)
    )
