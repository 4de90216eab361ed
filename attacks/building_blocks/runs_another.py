"""Attacks that do some preparation and then run another attack, which a parameter names."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from leakboard.attacks.base import Attack
from leakboard.core import registry


class RunsAnother(Attack):
    """Mixin for an attack that passes its findings to another attack with the same goal."""

    attack: str = Field(min_length=1, description="the attack that it runs")
    params: dict[str, Any] = Field({}, description="parameters of that attack")

    @model_validator(mode="after")
    def _runs_another(self) -> Self:
        if self.attack == self.name or registry.find("attack", self.attack)["goal"] != self.goal:
            raise ValueError(f"attack must be the name of another {self.goal} attack; given: {self.attack}")
        self.inner()
        return self

    def inner(self) -> Attack:
        """The other attack."""
        made = registry.create("attack", self.attack, self.params)
        assert isinstance(made, Attack)
        return made

    def runs(self) -> tuple[str, ...]:
        """The other attack."""
        return (self.attack,)

    def budget(self) -> dict[str, Any]:
        """The budget of the other attack."""
        return self.inner().budget()

    def work(self, problems: int) -> tuple[float, float]:
        """The work of the other attack. The preparation costs almost nothing in comparison."""
        return self.inner().work(problems)
