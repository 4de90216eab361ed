"""FedMIA: the other clients' updates say what a record that nobody has would look like."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask
from leakboard.attacks.membership.building_blocks.client_statistics import (
    FEWEST_OTHERS,
    Measure,
    against_others,
    statistics_of,
)
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Reading
from leakboard.federation.settings import VICTIM

#: auxiliary records from which the threshold comes, and the share of them that may be called members
CALIBRATION, FALSE_ALARMS = 200, 0.05


class FedMia(MembershipAttack):
    """Membership in one client's data, with the other clients' updates as the null distribution.

    For each round t, record x and client k there is a statistic M_k (cosine of the client's update with the record's
    gradient; minus the loss after the client's step). For the target client, Lambda_t = Pr[M <= M_target] under the
    distribution of M over the other clients. The score is the mean of Lambda_t over the observed rounds. Where the
    question is about the whole training, every client is the target in turn and the largest score counts.

    All statistics of a record are of this record: the public code draws the non-members of each client and round anew,
    which averages their scores towards the mean, so the published figures (CIFAR-100, 10 clients, AlexNet: TPR at
    0.1 % FPR 67.0 %, AUC .89; ResNet18: 68.7 %, .89) may be too high and are no target here. The null is Student's t
    instead of a normal distribution (`client_statistics.against_others`). With `null: none` the statistic itself is
    the score: the baselines Grad-Cosine and Avg-Cosine (cosine, one or several rounds), Grad-Diff (difference),
    Grad-Norm (norm) and Loss-Series (loss). Secure aggregation hides single updates: the attack is then refused.

    The defaults are those of the paper's FedMIA-II; no tuning of ours is recorded.
    """

    name: ClassVar[str] = "fedmia"
    citation: ClassVar[str] = "Zhu et al., FedMIA: An Effective Membership Inference Attack Exploiting (...), CVPR 2025"
    about: ClassVar[Literal["training", "batch"]] = "batch"
    threats: ClassVar[tuple[str, ...]] = ("server", "server+keys", "server+clients", "server:active")

    measure: Measure = Field("cosine", description="cosine: FedMIA-II; loss: FedMIA-I; difference, norm: baselines")
    null: Literal["others", "none"] = Field("others", description="none: the baseline without other clients")

    @model_validator(mode="after")
    def _norms_need_no_null(self) -> Self:
        if self.measure == "norm" and self.null != "none":
            raise ValueError("measure norm is the same for all clients, so it needs null: none; given: null: others")
        return self

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Score candidates and auxiliary records alike; the threshold comes from the auxiliary ones."""
        if knowledge.public.training.is_local:
            raise Unsupported("with local steps a client's update is no gradient at the model that it got")
        if knowledge.task.buffer_names and self.measure != "loss":
            raise Unsupported("batch norm mixes the records of a batch: no record has its own gradient")
        readings = [
            reading
            for reading in knowledge.readings()
            if reading.context.kind == "train" and task.round_index in (None, reading.context.round)
        ]
        asked = len(task.candidates)
        calibration = knowledge.auxiliary.select(torch.arange(len(knowledge.auxiliary))[:CALIBRATION])
        records = joined(task.candidates, calibration)
        targets = (VICTIM,) if task.round_index is not None else knowledge.public.clients
        scores = self.scores_of(knowledge, readings, records, targets)
        cut = float(torch.quantile(scores[asked:], 1 - FALSE_ALARMS))
        return MembershipAnswer(scores[:asked], scores[:asked] > cut, (), {"threshold": cut})

    def scores_of(
        self, knowledge: Knowledge, readings: list[Reading], records: LabelledImages, targets: tuple[str, ...]
    ) -> Tensor:
        """The largest of the targets' mean scores (N,) over the rounds."""
        by_target: dict[str, list[Tensor]] = {}
        needed = 0 if self.null == "none" else FEWEST_OTHERS
        for reading in readings:
            found = statistics_of(knowledge, reading, records, self.measure)
            for target in targets:
                others = [value for name, value in found.items() if name != target]
                if target in found and len(others) >= needed:
                    own = found[target].double()
                    score = own if self.null == "none" else against_others(own, torch.stack(others))
                    by_target.setdefault(target, []).append(score)
        if not by_target:
            whose = f"updates of the victim and of {needed} other clients" if needed else "update of the victim"
            raise Unsupported(
                f"this view ({knowledge.view.threat}) does not hold the {whose} of the defense "
                f"'{knowledge.public.defense}'"
            )
        return torch.stack([torch.stack(rows).mean(0) for rows in by_target.values()]).amax(0)
