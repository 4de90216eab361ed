"""Membership under model perturbation, for a client that knows the scheme."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import ClassVar

from pydantic import Field

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask
from leakboard.attacks.building_blocks.runs_another import RunsAnother
from leakboard.attacks.building_blocks.stripping import (
    Estimate,
    StrippedKnowledge,
    nothing_to_strip,
    perturbation_of,
)
from leakboard.defenses.base import Defense


class StripMembership(RunsAnother, MembershipAttack):
    """Estimate the additive noise r from own records, remove it, and run another attack on the true outputs.

    y_hat = y + alpha r. The client knows y_hat and alpha, and y approximately, from its own labels. Least squares gives
    r (see attacks/building_blocks/stripping.py), and every attack that only saw y_hat now sees y. Shadow models are
    trained under the same defense and stripped in the same way. `attack` names the attack to run.
    """

    name: ClassVar[str] = "strip-membership"
    citation: ClassVar[str] = "LeakBoard: least squares for the additive noise of Yang et al., WWW 2022"
    threats: ClassVar[tuple[str, ...]] = ("client",)
    can_adapt: ClassVar[bool] = True

    attack: str = Field("rmia", min_length=1, description="the membership attack that runs on the stripped models")
    estimate: Estimate = Field("labelled", description="source of r: own labels, the last layer, or two rounds")
    samples: int | None = Field(None, ge=1, description="how many own records are used; null: all")

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses the algebra of the scheme."""
        return True

    def refuses(self, defense: Defense) -> str:
        """A model in plain has nothing to strip."""
        return nothing_to_strip(defense)

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Read the models without r, then run the other attack."""
        perturbation_of(knowledge)
        inner = self.inner()
        assert isinstance(inner, MembershipAttack)
        given = {field.name: getattr(knowledge, field.name) for field in fields(Knowledge)}
        answer = inner.infer(StrippedKnowledge(**given, estimate=self.estimate, samples=self.samples), task)
        return replace(answer, flags=(*answer.flags, f"ran {self.attack} on models stripped of r ({self.estimate})"))
