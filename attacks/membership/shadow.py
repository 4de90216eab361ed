"""Shadow models: learn what membership looks like on models of one's own."""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask, final_model
from attacks.membership._signals import losses
from core.seeds import derive_seed
from datasets.base import LabelledImages
from federation.payload import Parameters
from federation.shadow import train_shadow
from federation.task import Task


class Shadow(MembershipAttack):
    """An attack network trained on shadow models, which were trained through the same loop and defense.

    Each shadow learns one half of the auxiliary images; its outputs on both halves, with the truth
    that the attacker knows there, train one classifier: outputs sorted by size, the output at the label,
    loss and correctness, standardised, then a two-layer perceptron. Score = its probability of
    "member"; decision at 1/2 (both halves are equally large).
    """

    name: ClassVar[str] = "shadow"
    citation: ClassVar[str] = "Shokri et al., Membership Inference Attacks, S&P 2017; Salem et al., ML-Leaks, NDSS 2019"

    shadows: int = Field(4, ge=1, le=256, description="how many shadow models")
    hidden: int = Field(64, ge=1, le=4096, description="width of the attack network")

    def budget(self) -> dict[str, int]:
        """The number of shadow models."""
        return {"shadows": self.shadows}

    def work(self, problems: int) -> tuple[float, float]:
        """Every shadow is a training on half of the data."""
        return 0.0, 0.5 * self.shadows

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Train shadows and the attack network, then ask it about the candidates."""
        target = final_model(knowledge)
        rows: list[Tensor] = []
        truth: list[Tensor] = []
        for index in range(self.shadows):
            half_in, half_out = self._halves(knowledge, index)
            seed = derive_seed(knowledge.seed, "shadow", index)
            view = train_shadow(knowledge.defense, knowledge.public, half_in, knowledge.view.threat, seed)
            model = final_model(Knowledge(view, knowledge.defense, knowledge.auxiliary, seed))
            for half, member in ((half_in, 1), (half_out, 0)):
                rows.append(features(knowledge.task, model, half))
                truth.append(torch.full((len(half),), member))
            knowledge.progress(f"shadow {index + 1} of {self.shadows}")
        classifier = make_pipeline(
            StandardScaler(),
            MLPClassifier((self.hidden,), alpha=1e-2, max_iter=200, random_state=knowledge.seed % 2**32),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(_array(torch.cat(rows)), _array(torch.cat(truth)))
        asked = _array(features(knowledge.task, target, task.candidates))
        scores = torch.from_numpy(np.ascontiguousarray(classifier.predict_proba(asked)[:, 1]))
        fit = float(classifier.score(_array(torch.cat(rows)), _array(torch.cat(truth))))
        return MembershipAnswer(scores, scores >= 0.5, diagnostics={"accuracy_on_shadows": fit})

    def _halves(self, knowledge: Knowledge, index: int) -> tuple[LabelledImages, LabelledImages]:
        """Two halves of the auxiliary images; shadows 2i and 2i+1 use the same halves, swapped."""
        generator = torch.Generator().manual_seed(derive_seed(knowledge.seed, "halves", index // 2))
        order = torch.randperm(len(knowledge.auxiliary), generator=generator)
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        first, second = (first, second) if index % 2 == 0 else (second, first)
        return knowledge.auxiliary.select(first), knowledge.auxiliary.select(second)


def features(task: Task, model: Parameters, data: LabelledImages) -> Tensor:
    """(N, classes + 3): outputs sorted, output at the label, loss, whether the prediction is right."""
    logits = torch.nan_to_num(task.predict(model, data.images)).clamp(-1e6, 1e6)
    at_label = logits.gather(1, data.labels[:, None])
    right = (logits.argmax(1) == data.labels).to(logits)[:, None]
    loss = losses(task, model, data).clamp(max=1e6).log1p()[:, None]
    return torch.cat([logits.sort(1, descending=True).values, at_label, loss, right], dim=1)


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().numpy()
