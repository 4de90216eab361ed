"""The white-box membership attack: gradients, outputs and loss of the model at several rounds."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import Knowledge, KnownMembership, MembershipAnswer, MembershipTask
from leakboard.attacks.membership.building_blocks.network import NetworkAttack
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack, ShadowPool, Signals, moments_of
from leakboard.attacks.membership.building_blocks.signals import losses_of, output_errors, outputs_and_features
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.federation.task import Task


class Nasr(NetworkAttack, ShadowAttack):
    """A network on what every observed model reveals about a record: last-layer gradient, outputs, loss.

    The gradient of a record's loss with respect to the last layer's weight is e h^T, with e = d loss / d logits
    (classes,) and h the layer's input (H,): no backward pass is needed. Features of a record, for each observed round
    and the final model: the outputs sorted by size, the output at the label, log(1 + loss), |e|, |h|, and the
    gradient's norm |e| |h|. If the cell grants known members, also the gradient itself, e (P h)^T (classes x
    projection), where P is a random projection of h (Johnson-Lindenstrauss) unless H is at most `projection`. Without
    known members the network learns from shadow models; single coordinates of h then mean nothing, because they differ
    between models.

    Differences from the paper: one perceptron on the joined features instead of one branch per feature; the last layer
    only.
    """

    name: ClassVar[str] = "nasr"
    citation: ClassVar[str] = "Nasr et al., Comprehensive Privacy Analysis of Deep Learning, S&P 2019"

    shadows: int = Field(4, ge=1, le=256, description="how many shadow models, if no members are known")
    projection: int = Field(8, ge=1, le=4096, description="dimension to which the last layer's input is projected")

    @property
    def needed(self) -> int:
        """The number of shadow models if no members are known."""
        return self.shadows

    def budget(self) -> dict[str, int]:
        """The number of shadow models and the passes of the attack network."""
        return {"shadows": self.shadows, "epochs": self.epochs}

    def work(self, problems: int) -> tuple[float, float]:
        """Every shadow is a training on half of the auxiliary images; a cached pool costs nothing."""
        return 0.0, 0.5 * self.shadows

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Learn from known members if there are some, otherwise from shadow models; then score the candidates."""
        if task.known is not None:
            return self._from_known(knowledge, task.candidates, task.known)
        return super().infer(knowledge, task)

    def _from_known(self, knowledge: Knowledge, candidates: LabelledImages, known: KnownMembership) -> MembershipAnswer:
        learned, asked = (self._gradients(knowledge, data) for data in (known.records, candidates))
        scores, fit = self.judged(learned, known.members, asked, knowledge.seed)
        flags = (f"was told {int(known.members.sum())} members and {int((~known.members).sum())} others",)
        return MembershipAnswer(scores, scores >= 0, flags, {"accuracy_on_known": fit})

    def _gradients(self, knowledge: Knowledge, data: LabelledImages) -> Tensor:
        """(N, moments * (classes + 5 + classes * projection)): `_common` and the gradient, for each moment."""
        columns: list[Tensor] = []
        for moment, model in moments_of(knowledge).items():
            logits, hidden = outputs_and_features(knowledge.task, model, data.images)
            errors = output_errors(knowledge.task, logits, data.labels)
            seed = derive_seed(knowledge.seed, "projection", moment)
            gradient = last_layer_gradients(errors, projected(hidden, self.projection, seed)).flatten(1)
            columns += [_common(knowledge.task, logits, hidden.norm(dim=1), data.labels), gradient]
        return torch.nan_to_num(torch.cat(columns, dim=1))

    def judge(self, task: Task, pool: ShadowPool, target: Signals, seed: int) -> MembershipAnswer:
        """Learn from the shadows how to interpret the target's signals."""
        moments = [moment for moment in target.logits if moment in pool.signals.logits]
        if not pool.signals.norms:
            raise Unsupported("the network does not end in a linear layer: no last-layer gradient in closed form")
        labels = pool.records.labels[pool.universe]
        models = pool.signals.on(pool.universe)
        rows = [_all_common(task, models.of(index), labels, moments) for index in range(len(pool))]
        members = pool.member[:, pool.universe].flatten()
        asked_labels = pool.records.labels[pool.candidates]
        asked = _all_common(task, target.on(pool.candidates), asked_labels, moments)
        scores, fit = self.judged(torch.cat(rows), members, asked, seed)
        diagnostics = {"accuracy_on_shadows": fit, "moments": float(len(moments))}
        return MembershipAnswer(scores, scores >= 0, pool.flags, diagnostics)


def last_layer_gradients(errors: Tensor, hidden: Tensor) -> Tensor:
    """e h^T (N, classes, H) of errors (N, classes) and layer inputs (N, H): one gradient per record."""
    return errors[:, :, None] * hidden[:, None, :]


def projected(hidden: Tensor, size: int, seed: int) -> Tensor:
    """hidden (N, H) unchanged if H <= size, otherwise times a random normal (H, size) / sqrt(size)."""
    if hidden.shape[1] <= size:
        return hidden
    matrix = torch.randn(hidden.shape[1], size, generator=torch.Generator().manual_seed(seed)) / size**0.5
    return torch.matmul(hidden, matrix.to(hidden))


def _common(task: Task, logits: Tensor, norms: Tensor, labels: Tensor) -> Tensor:
    """(N, classes + 5): outputs sorted by size, output at the label, loss, |e|, |h|, |e| |h|."""
    errors = output_errors(task, logits, labels).norm(dim=1)
    columns = [
        logits.gather(1, labels[:, None]).squeeze(1),
        losses_of(task, logits, labels).log1p(),
        errors,
        norms,
        errors * norms,
    ]
    return torch.cat([logits.sort(1, descending=True).values, torch.stack(columns, dim=1)], dim=1)


def _all_common(task: Task, signals: Signals, labels: Tensor, moments: list[str]) -> Tensor:
    """`_common` at every moment: (N, moments * (classes + 5))."""
    parts = [_common(task, signals.logits[moment], signals.norms[moment], labels) for moment in moments]
    return torch.nan_to_num(torch.cat(parts, dim=1))
