"""Shadow models: the attacker trains its own models to learn how members differ."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import MembershipAnswer
from leakboard.attacks.membership.building_blocks.network import NetworkAttack
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack, ShadowPool, Signals
from leakboard.attacks.membership.building_blocks.signals import losses_of
from leakboard.core.seeds import derive_seed
from leakboard.federation.task import Task

Outputs = Literal["sorted", "full", "top"]


class Shadow(NetworkAttack, ShadowAttack):
    """An attack network trained on shadow models, which were trained through the same loop and defense.

    Each shadow learns one half of the auxiliary images (`shadows`). Its outputs on both halves, with the membership
    that the attacker knows there, train one network, or one network per class. Features: all outputs in class order,
    sorted by size, or only the `top` largest; with `label_features` also the output at the label, log(1 + loss) and
    whether the prediction is right. If the shadows lack members or non-members of a class, the network of all classes
    scores it. The decision is at even odds, because both halves are equally large.
    """

    name: ClassVar[str] = "shadow"
    citation: ClassVar[str] = "Shokri et al., Membership Inference Attacks, S&P 2017; Salem et al., ML-Leaks, NDSS 2019"

    shadows: int = Field(4, ge=1, le=256, description="how many shadow models")
    hidden: tuple[int, ...] = Field((64,), description="widths of the attack network's hidden layers")
    outputs: Outputs = Field("sorted", description="all outputs in class order, sorted by size, or only the largest")
    top: int = Field(3, ge=1, description="how many outputs `top` takes")
    label_features: bool = Field(True, description="whether output at the label, loss and correctness are features")
    per_class: bool = Field(False, description="one network per class, or one for all classes")

    @property
    def needed(self) -> int:
        """The number of shadow models."""
        return self.shadows

    def budget(self) -> dict[str, int]:
        """The number of shadow models and the passes of the attack network."""
        return {"shadows": self.shadows, "epochs": self.epochs}

    def work(self, problems: int) -> tuple[float, float]:
        """Every shadow is a training on half of the auxiliary images; a cached pool costs nothing."""
        return 0.0, 0.5 * self.shadows

    def judge(self, task: Task, pool: ShadowPool, target: Signals, seed: int) -> MembershipAnswer:
        """Train the attack network on the shadows, then score the candidates."""
        labels = pool.records.labels[pool.universe]
        models = pool.signals.on(pool.universe).final
        learned = torch.cat([self.features(task, logits, labels) for logits in models])
        members = pool.member[:, pool.universe].flatten()
        asked_labels = pool.records.labels[pool.candidates]
        asked = self.features(task, target.on(pool.candidates).final, asked_labels)
        scores, fit = self.judged(learned, members, asked, seed)
        if self.per_class:
            for label in torch.unique(asked_labels).tolist():
                rows = labels.repeat(len(pool)) == label
                if members[rows].any() and not members[rows].all():
                    mine = asked_labels == label
                    own_seed = derive_seed(seed, "class", label)
                    scores[mine], _ = self.judged(learned[rows], members[rows], asked[mine], own_seed)
        return MembershipAnswer(scores, scores >= 0, pool.flags, {"accuracy_on_shadows": fit})

    def features(self, task: Task, logits: Tensor, labels: Tensor) -> Tensor:
        """Features (N, F) of logits (N, classes) with labels (N,)."""
        logits = torch.nan_to_num(logits)
        chosen = logits if self.outputs == "full" else logits.sort(1, descending=True).values
        columns = [chosen[:, : self.top] if self.outputs == "top" else chosen]
        if self.label_features:
            right = (logits.argmax(1) == labels).to(logits)[:, None]
            columns += [logits.gather(1, labels[:, None]), losses_of(task, logits, labels).log1p()[:, None], right]
        return torch.cat(columns, dim=1)
