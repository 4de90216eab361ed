"""The generic adaptive attack: learn what a client's message says about its image, whatever the message holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.attacks.reconstruction.regression.learner import FEWEST
from leakboard.attacks.reconstruction.regression.ridge import Ridge, Scaling
from leakboard.attacks.reconstruction.regression.sketch import Sketch
from leakboard.attacks.reconstruction.regression.sources import CHUNK, Source, message_of, source_of
from leakboard.attacks.reconstruction.ridge import PENALTIES, RidgeInversion, Solved
from leakboard.core.seeds import derive_seed
from leakboard.federation.payload import Parameters, Payload, leaves

#: share of left-out auxiliary labels that must be predicted before the prediction is used as the victim's label
TRUSTED = 0.9


class MessageRidge(RidgeInversion):
    """Ridge regression from all numbers in a client's message to pixels, through the defense's own optional protocol.

    `ridge` regresses on the gradient that the honest reading finds. This attack does not read the message: every tensor
    in it is a feature, so whatever a scheme sends beside its gradient is used as well. It knows nothing of a scheme but
    `Defense.simulate`, which says what a client would have sent for each auxiliary record:

    1. Messages of auxiliary records with their own labels; regress the label. The victim's label is the prediction.
    2. If that is right for most of the auxiliary records that were left out, messages of all images with the victim's
       label, which `ridge` then gets too; otherwise those of 1. Regress the pixels.

    Where the view holds no message of the victim, or `ridge` explains more of the auxiliary images (leave-one-out), its
    answer is used: the reading, or for sums `mimic_records`, `mimic` and `noise_scale`. Batches are left to `ridge`.

    The defaults are those of `ridge` and were not tuned again; tensors are divided by their length since a trial on
    `mp-dp` failed without that (docs/adaptive.md).
    """

    name: ClassVar[str] = "message-ridge"
    citation: ClassVar[str] = "LeakBoard; after Wu et al., Learning to Invert, UAI 2023"

    def budget(self) -> dict[str, int]:
        """Auxiliary gradients and messages per problem."""
        return {"gradients": self.samples, "messages": 2 * self.samples}

    def work(self, problems: int) -> tuple[float, float]:
        """One gradient per example, in three regressions."""
        return 3.0 * self.samples * problems, 0.0

    def solve(self, knowledge: Knowledge, problem: Inversion, source: Source) -> Solved:
        """The better of two regressions, on the reading and on the message."""
        by_message = self._by_message(knowledge, problem)
        if by_message is None:
            return super().solve(knowledge, problem, source)
        label = by_message.labels if by_message.certain else None
        # with a wrong label the reading explains its own simulations just as well, so `explained` would not show it
        if label is not None and not torch.equal(label, labels_of(knowledge, problem)):
            problem = replace(problem, labels=label)
            source = source_of(knowledge, problem)
        read = super().solve(knowledge, problem, source)
        if read.images is None or by_message.explained > read.explained:
            return by_message
        return read._replace(labels=label)

    def _by_message(self, knowledge: Knowledge, problem: Inversion) -> Solved | None:
        """The image and the label from the victim's own message; None without one."""
        found = message_of(knowledge, problem)
        if found is None or problem.gradient.records != 1:
            return None
        received, sent = found
        random = knowledge.generator_for(problem, "messages")
        messages = _Messages(knowledge, received, numbers(sent), self.bins, random)
        data = knowledge.auxiliary
        drawn = data.select(torch.randperm(len(data), generator=random)[: self.samples])
        images, own = drawn.images, drawn.labels
        observed = messages.sketch({name: value[None] for name, value in numbers(sent).items()})
        onehot = torch.nn.functional.one_hot(own, knowledge.public.classes).float()
        if problem.labels is None:
            features = messages(images, own, 1)
            if features is None:
                return None
            fitted = _Fitted.of(features, onehot[: len(features)], messages.widths)
            guess = fitted.predict(observed)[0].argmax()
            if fitted.hits(onehot[: len(features)]) < TRUSTED:
                plain = _Fitted.of(features, images[: len(features)].flatten(1), messages.widths)
                found_images = plain.predict(observed).view(-1, *images.shape[1:]).clamp(0, 1)
                return Solved(found_images, plain.ridge.explained, guess[None])
        else:
            guess = problem.labels[0]
        features = messages(images, guess.expand(len(images)), 2)
        if features is None:
            return None
        fitted = _Fitted.of(features, images[: len(features)].flatten(1), messages.widths)
        found_images = fitted.predict(observed).view(-1, *images.shape[1:]).clamp(0, 1)
        return Solved(found_images, fitted.ridge.explained, guess[None], certain=True)


def numbers(payload: Payload) -> Parameters:
    """Every tensor of a message by its path, as float64, divided by its length.

    A simulation may lack a factor that only the real client knows, as the clipping of a scheme whose clients cannot
    compute their own norm. Directions do not depend on it.

    >>> numbers({"psi": [torch.tensor([3.0, 4.0])], "note": "text"})
    {'/psi/0': tensor([0.6000, 0.8000], dtype=torch.float64)}
    """
    found: Mapping[str, Any] = dict(leaves(payload))
    tensors = {path: value.double() for path, value in found.items() if isinstance(value, Tensor) and value.numel()}
    return {path: value / value.norm().clamp(min=1e-300) for path, value in tensors.items()}


class _Messages:
    """Sketched messages of records of the attacker's choice."""

    def __init__(
        self, knowledge: Knowledge, received: Payload, sent: Parameters, bins: int, random: torch.Generator
    ) -> None:
        self.knowledge, self.received = knowledge, received
        self.sketch = Sketch(sent, bins, random)
        self.widths = list(self.sketch.sizes.values())
        self.seed = int(torch.randint(2**62, (1,), generator=random))

    def __call__(self, images: Tensor, labels: Tensor, stage: int) -> Tensor | None:
        """Features (N, d) of records (N, C, H, W); of fewer if time ends, None from too few or another form."""
        defense, public = self.knowledge.defense, self.knowledge.public
        rows: list[Tensor] = []
        for start in range(0, len(images), CHUNK):
            if self.knowledge.time_left() <= 0:
                break
            for index in range(start, min(start + CHUNK, len(images))):
                seed = derive_seed(self.seed, stage, index)
                one = slice(index, index + 1)
                made = numbers(defense.simulate(public, self.received, images[one], labels[one], seed))
                if any(name not in made or made[name].numel() != self.sketch.count[name] for name in self.sketch.sizes):
                    return None
                rows.append(self.sketch({name: value[None] for name, value in made.items()}))
        features = torch.cat(rows) if len(rows) >= FEWEST else None
        return features if features is not None and bool(features.isfinite().all()) else None


@dataclass(frozen=True)
class _Fitted:
    """Standardised features and a regression on them."""

    scaling: Scaling
    ridge: Ridge

    @staticmethod
    def of(features: Tensor, targets: Tensor, widths: list[int]) -> _Fitted:
        """From features (N, d) and targets (N, t)."""
        scaling = Scaling.of(features, widths)
        return _Fitted(scaling, Ridge.fit(scaling(features), targets, PENALTIES))

    def predict(self, features: Tensor) -> Tensor:
        """Targets (M, t) of features (M, d)."""
        return self.ridge.predict(self.scaling(features))

    def hits(self, targets: Tensor) -> float:
        """The share of one-hot targets (N, t) whose largest entry is predicted if the example is left out."""
        predicted = targets - self.ridge.residuals
        return float((predicted.argmax(1) == targets.argmax(1)).double().mean())
