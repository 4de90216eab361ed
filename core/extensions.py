"""Extensions, which are found automatically and have no settings: charts of the page and formats of tables.

Defenses, attacks, data sets, models and metrics are plugins (`core/plugins.py`): records name them. Charts and formats
only show records, so a class with a `name` is enough. `registry.extensions` collects them.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import ClassVar, TypeVar


class Extension:
    """Base of all extensions. A subclass that sets `name` is found; one that does not is a building block."""

    name: ClassVar[str]


E = TypeVar("E", bound=Extension)


def defined_in(module: ModuleType, base: type[E]) -> list[type[E]]:
    """The extensions of a base that a module defines itself, in the order of its lines."""
    found = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
    return [value for value in found if "name" in value.__dict__ and value.__module__ == module.__name__]
