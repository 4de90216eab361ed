"""The paper's membership attack: a network trained on members that the attacker knows."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipTask, final_model
from leakboard.attacks.membership.building_blocks.network import NetworkAttack
from leakboard.attacks.membership.building_blocks.signals import losses_of, outputs_and_features
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

Feature = Literal["outputs", "intermediate", "loss", "correct", "label"]


class KnownMembers(NetworkAttack):
    """A network on the target's own outputs, trained on half of the members and non-members, evaluated on the rest.

    This is the setup of the paper under benchmark. The suite grants the knowledge (`known_members: 0.5`), and those
    records are not evaluated. Features of a record, in this order: outputs (classes,), intermediate outputs, which are
    the inputs of the last layer (H,), log(1 + loss), whether the prediction is right, the label as one-hot (classes,).
    Raw (`standardise: false`) and standardised features make a large difference under model perturbation.
    """

    name: ClassVar[str] = "known-members"
    citation: ClassVar[str] = "Baluta et al., CCS 2022; Nasr et al., Comprehensive Privacy Analysis, S&P 2019"

    validation: float = Field(0, ge=0, lt=1, description="share that picks the epoch; the paper uses none")
    features: tuple[Feature, ...] = Field(
        ("outputs", "intermediate", "loss", "correct", "label"), min_length=1, description="what the network sees"
    )

    def budget(self) -> dict[str, int]:
        """The passes of the attack network."""
        return {"epochs": self.epochs}

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Train on the known records, then score the candidates."""
        if task.known is None:
            raise Unsupported("this attack learns from known members: set known_members in the suite")
        model = final_model(knowledge)
        known = self._features(knowledge.task, model, task.known.records)
        asked = self._features(knowledge.task, model, task.candidates)
        scores, fit = self.judged(known, task.known.members, asked, knowledge.seed)
        flags = (f"was told {int(task.known.members.sum())} members and {int((~task.known.members).sum())} others",)
        return MembershipAnswer(scores, scores >= 0, flags, {"accuracy_on_known": fit})

    def _features(self, task: Task, model: Parameters, data: LabelledImages) -> Tensor:
        """(N, F): the chosen features, in the order listed above."""
        if "intermediate" in self.features:
            logits, hidden = outputs_and_features(task, model, data.images)
        else:
            logits, hidden = task.predict(model, data.images), torch.empty(len(data), 0)
        found = {
            "outputs": logits,
            "intermediate": hidden,
            "loss": losses_of(task, logits, data.labels).log1p()[:, None],
            "correct": (logits.argmax(1) == data.labels)[:, None],
            "label": nn.functional.one_hot(data.labels, logits.shape[1]),
        }
        chosen = [value.float() for name, value in found.items() if name in self.features]
        return torch.nan_to_num(torch.cat(chosen, dim=1))
