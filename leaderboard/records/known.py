"""What is known of goals and metrics without running any of their code: it stands in the plugin index.

Suites, plans and tables ask here, so that opening a run or printing a table loads no goal and no metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple, Self

from leakboard.core import registry
from leakboard.core.errors import unknown_name

#: how a metric's value follows from its values per item: their mean, the mean of values in [0, 1], or not at all
Aggregate = Literal["mean", "share", "whole"]


class Listed(NamedTuple):
    """A column in the list of all cells that is no metric: an attribute of the cell, or a detail of a score.

    `key` names the column, `source` the cell's attribute; with `score` it is a detail of that score, called `key`.
    """

    key: str
    title: str
    source: str = ""
    score: str = ""
    digits: int = 3
    hint: str = ""


@dataclass(frozen=True)
class KnownGoal:
    """The class variables of a goal; `leaderboard.goals.base.Goal` says what they mean."""

    name: str
    items: str
    per_round: bool
    per_batch_size: bool
    prior: str
    position: int
    decides: bool
    is_game: bool
    about: tuple[str, ...]
    per_target: tuple[str, ...]
    expected: tuple[str, ...]
    headlines: tuple[str, ...]
    listed: tuple[str | Listed, ...]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """From an entry of the plugin index, where lists stand for tuples."""
        plain: dict[str, Any] = {f.name: tuple(v) if isinstance(v := entry[f.name], list) else v for f in fields(cls)}
        listed = tuple(given if isinstance(given, str) else Listed(**given) for given in entry["listed"])
        return cls(**plain | {"listed": listed})


@dataclass(frozen=True)
class KnownMetric:
    """The class variables of a metric; `metrics.base.Metric` says what they mean."""

    name: str
    goal: str = ""
    title: str = ""
    unit: str = ""
    digits: int = 3
    significant: int | None = None
    hint: str = ""
    higher_is_better: bool | None = None
    aggregate: Aggregate = "whole"
    tolerance: float = 0.05

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """From an entry of the plugin index."""
        return cls(**{field.name: entry[field.name] for field in fields(cls)})


def goals() -> Mapping[str, KnownGoal]:
    """All goals by name, in the order of their tables."""
    return _goals(registry.loaded_modules())


def metrics() -> Mapping[str, KnownMetric]:
    """All metrics by name."""
    return _metrics(registry.loaded_modules())


@cache
def _goals(_loaded: tuple[ModuleType, ...]) -> Mapping[str, KnownGoal]:
    found = [KnownGoal.of(entry) for entry in registry.entries("goal").values()]
    return {goal.name: goal for goal in sorted(found, key=lambda goal: goal.position)}


@cache
def _metrics(_loaded: tuple[ModuleType, ...]) -> Mapping[str, KnownMetric]:
    return {name: KnownMetric.of(entry) for name, entry in registry.entries("metric").items()}


def known_goal(name: str) -> KnownGoal:
    """One goal; a name that nobody has is one sentence."""
    found = goals().get(name)
    if found is None:
        raise unknown_name("goal", name, goals())
    return found


def known_metric(name: str, unit: str = "") -> KnownMetric:
    """One metric; of one whose plugin is not loaded, its name and the unit that its records state."""
    return metrics().get(name) or KnownMetric(name, title=name, unit=unit)
