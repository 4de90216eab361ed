"""Membership under model perturbation, by a client that knows the scheme."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from attacks._stripping import Estimate, StrippedKnowledge, perturbation_of
from attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask
from core import registry
from core.plugins import Plugin


class StripMembership(MembershipAttack):
    """Estimate the additive noise r from own records, strip it, and run another attack on the true outputs.

    y_hat = y + alpha r, where the client knows y_hat and alpha and, nearly, y: its own labels. Least squares gives r
    (see attacks/_stripping.py), and every attack that is blind to y_hat sees y. Shadow models are trained under the
    same defense and stripped in the same way. What it runs is named by `attack`.
    """

    name: ClassVar[str] = "strip-membership"
    citation: ClassVar[str] = "LeakBoard: least squares for the additive noise of Yang et al., WWW 2022"
    threats: ClassVar[tuple[str, ...]] = ("client",)
    can_adapt: ClassVar[bool] = True

    attack: str = Field("rmia", min_length=1, description="the membership attack that gets the stripped models")
    params: dict[str, Any] = Field(default_factory=dict, description="parameters of that attack")
    estimate: Estimate = Field("labelled", description="where r comes from: own labels, last layer, two rounds")
    samples: int | None = Field(None, ge=1, description="how many own records are used; none: all")

    @model_validator(mode="after")
    def _runs_another(self) -> Self:
        if self.attack == self.name or registry.find("attack", self.attack)["goal"] != "membership":
            raise ValueError(f"attack must be the name of another membership attack; given: {self.attack}")
        self.inner()
        return self

    @property
    def adaptive(self) -> bool:
        """It uses the scheme's algebra."""
        return True

    def inner(self) -> MembershipAttack:
        """The attack on the stripped models."""
        made: Plugin = registry.create("attack", self.attack, self.params)
        assert isinstance(made, MembershipAttack)
        return made

    def runs(self) -> tuple[str, ...]:
        """The attack on the stripped models."""
        return (self.attack,)

    def budget(self) -> dict[str, Any]:
        """That of the other attack."""
        return self.inner().budget()

    def work(self, problems: int) -> tuple[float, float]:
        """That of the other attack; stripping costs one forward pass."""
        return self.inner().work(problems)

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Read the models without r, then ask the other attack."""
        perturbation_of(knowledge)
        given = {field.name: getattr(knowledge, field.name) for field in fields(Knowledge)}
        answer = self.inner().infer(StrippedKnowledge(**given, estimate=self.estimate, samples=self.samples), task)
        return replace(answer, flags=(*answer.flags, f"ran {self.attack} on models stripped of r ({self.estimate})"))
