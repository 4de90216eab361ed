"""The contract of plugins as a library: what every defense and every attack must do, as plain functions.

A rule is a function `check_*` of one plugin; the first line of its docstring is the rule. It returns nothing where the
plugin keeps the rule, and raises `Broken` (with one sentence) or `NotApplicable` (with the reason) where it does not.

    from leakboard.contract import check_plugin

    for result in check_plugin(MyDefense):   # a class or an instance
        print(result.line)

`leakboard check FILE.py` does this for every plugin of a file. Our own plugins are tested by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from leakboard.contract import (
    any_plugin,
    attack,
    audit,
    channels,
    defense,
    extraction,
    imitation,
    overflow,
    reconstruction,
    snapshots,
)
from leakboard.contract.checking import Broken, NotApplicable, Result, Rule, apply, sentence_of
from leakboard.contract.small import small
from leakboard.core.errors import UserError
from leakboard.core.plugins import Plugin
from leakboard.core.registry import FOLDERS

__all__ = ["Broken", "NotApplicable", "Result", "Rule", "apply", "check_plugin", "rules", "sentence_of"]

_OF_KIND: dict[str, tuple[ModuleType, ...]] = {
    "defense": (defense, channels, overflow, imitation, snapshots),
    "attack": (attack,),
}
_OF_GOAL: dict[str, ModuleType] = {"reconstruction": reconstruction, "extraction": extraction, "audit": audit}


def rules(kind: str, goal: str | None = None) -> tuple[Rule, ...]:
    """The rules for plugins of a kind, in the order in which they are checked; for attacks of all goals, or of one.

    >>> [rule.__name__ for rule in rules("metric")]
    ['check_says_what_it_is', 'check_parameters_survive_json']
    """
    if kind not in FOLDERS:
        raise UserError(f"There is no kind of plugin '{kind}': allowed are {', '.join(FOLDERS)}.")
    modules = [any_plugin, *_OF_KIND.get(kind, ())]
    if kind == "attack":
        modules += [module for name, module in _OF_GOAL.items() if goal in (None, name)]
    return tuple(rule for module in modules for rule in _rules_in(module))


def check_plugin(plugin: Plugin | type[Plugin]) -> Iterator[Result]:
    """One result per rule, as soon as it is known. A class is checked with small parameters (`contract.small`)."""
    made = plugin if isinstance(plugin, Plugin) else small(plugin)
    for rule in rules(made.kind, getattr(made, "goal", None)):
        yield apply(rule, made)


def _rules_in(module: ModuleType) -> list[Any]:
    """The functions `check_*` that a module defines itself, in their order."""
    found = (value for name, value in vars(module).items() if name.startswith("check_"))
    return [value for value in found if getattr(value, "__module__", "") == module.__name__]
