"""A client that knows model perturbation recovers the global model."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from leakboard.attacks.base import ExtractionAnswer, ExtractionAttack, ExtractionTask, Knowledge
from leakboard.attacks.building_blocks.stripping import (
    Estimate,
    Stripper,
    nothing_to_strip,
    perturbation_of,
    strip,
)
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.federation.task import task_of


class StrippedModel(ExtractionAttack):
    """The received model without its additive noise r: the true model up to a rescaling that changes no output.

    `estimate` says how r is estimated (attacks/building_blocks/stripping.py). Transitional layers are merged into the
    weights. The answer is in canonical form (rows of norm 1 before every activation), because positive rescaling is a
    symmetry of ReLU networks.
    """

    name: ClassVar[str] = "extraction"
    citation: ClassVar[str] = "LeakBoard: least squares for the additive noise of Yang et al., WWW 2022"
    can_adapt: ClassVar[bool] = True

    estimate: Estimate = Field("labelled", description="source of r: own labels, the last layer, or two rounds")
    samples: int | None = Field(None, ge=1, description="how many own records are used; null: all")

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses the algebra of the scheme."""
        return True

    def refuses(self, defense: Defense) -> str:
        """A model in plain has nothing to strip."""
        return nothing_to_strip(defense)

    def extract(self, knowledge: Knowledge, task: ExtractionTask) -> ExtractionAnswer:
        """Strip the model of the first probe of the round."""
        stripper = Stripper(knowledge.view, perturbation_of(knowledge), self.estimate, self.samples)
        got = stripper.of("probe", task.round_index)
        if got is None:
            raise Unsupported(f"{knowledge.view.parties[0]} received no model in round {task.round_index}")
        r, expanded = stripper.r(got), stripper.expanded
        found = canonical_form(strip(got, r, expanded), expanded.plain)
        held = len(stripper.records())
        flags = []
        if self.estimate != "data-free" and self.samples is not None and held < self.samples:
            flags.append(f"only {held} own records, {self.samples} were asked for")
        model = {name: value.to(task_of(knowledge.public).dtype) for name, value in found.items()}
        return ExtractionAnswer(model, tuple(flags), {"size_of_r": float(r.norm()), "records": float(held)})
