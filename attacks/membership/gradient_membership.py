"""Which records are in a batch, from the gradient that the server reads."""

from __future__ import annotations

from typing import ClassVar

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.membership.building_blocks.batch import BatchMembership, Mixture, own_loss


class GradientMembership(BatchMembership):
    """Batch membership from the honest reading's gradient: the victim's own, or the mean that it is part of.

    The plain counterpart of `phi-membership`. It is exact if the gradient is exact (fedsgd); otherwise the noise limits
    it. With local steps the update, divided by rate and steps, is taken for a gradient: an approximation.
    """

    name: ClassVar[str] = "gradient-membership"
    citation: ClassVar[str] = "Definition: least squares of a batch's gradient on the candidates' own gradients"

    def mixtures(self, knowledge: Knowledge, round_index: int) -> dict[str, Mixture]:
        """Every gradient of the round that the honest reading has."""
        loss = own_loss(knowledge.task)
        found = {}
        for reading in knowledge.readings():
            o, model = reading.context, reading.model
            if o.kind == "train" and o.round == round_index and model is not None:
                for owner, sent in reading.gradients.items():
                    gradient = Inversion.of(knowledge.public, model, sent, None).gradient
                    transform = knowledge.defense.mimic_records(gradient, knowledge.public)
                    found[owner] = Mixture(gradient, model, loss, model, transform)
        return found
