"""The cheap learned attack: regress images on gradients."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import (
    STOPPED,
    Inversion,
    Knowledge,
    ReconstructionAnswer,
    ReconstructionAttack,
    ReconstructionTask,
    gradient_flags,
)
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.attacks.reconstruction.regression.learner import Inverter, Moments, auxiliary_batches, learn
from leakboard.attacks.reconstruction.regression.sketch import Sketch
from leakboard.attacks.reconstruction.regression.sources import Source, source_of
from leakboard.core.errors import Unsupported
from leakboard.federation.payload import Parameters

#: penalties of the first regression, of which the leave-one-out error chooses one
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 10.0)


class Solved(NamedTuple):
    """Images (M, C, H, W) or None, the share of variance that is explained, labels (M,) if the attack has its own.

    `certain`: the labels were told, or predicted by a regression that is right on auxiliary records.
    """

    images: Tensor | None
    explained: float
    labels: Tensor | None = None
    certain: bool = False


class RidgeInversion(ReconstructionAttack):
    """Ridge regression from sketched gradients to pixels, trained on auxiliary images through the defense's own code.

    The attacker computes what it would have read if the victim had held each of its own images: the defense simulates a
    client's message (`Defense.simulate`), and its own reading makes a gradient of it. So the attack adapts to any
    defense, noise included. Features: a count sketch of each tensor, standardised, each tensor with the same weight.
    The penalty is the one with the smallest leave-one-out error. Where plain gradients of one record are sent, the
    residual r = dL/dlogits follows from the last layer, and the regression uses gradients of r . logits: the label then
    confounds nothing. A batch is regressed as a whole, with its labels in sorted order.

    The idea of learning g -> x through the defense is that of Wu et al. (Learning to Invert, UAI 2023), who train a
    network of two hidden layers with 3,000 units on 50,000 gradients; this is its linear form. They report no PSNR for
    a setting that this benchmark has, so there is no published figure to compare with (docs/attacks.md).

    More `samples` and `bins` are better on auxiliary victims, and cost more (docs/attacks.md).
    """

    name: ClassVar[str] = "ridge"
    citation: ClassVar[str] = "After Wu et al., Learning to Invert, UAI 2023; linear, LeakBoard"
    can_adapt: ClassVar[bool] = True
    penalties: ClassVar[tuple[float, ...]] = PENALTIES

    samples: int = Field(2000, ge=8, le=1_000_000, description="auxiliary gradients that are regressed on")
    bins: int = Field(2304, ge=1, description="features per tensor")
    flip: bool = Field(True, description="use the mirror images of auxiliary images too")

    @property
    def adaptive(self) -> bool:
        """It runs the defense's own code."""
        return True

    def budget(self) -> dict[str, int]:
        """Auxiliary gradients per problem."""
        return {"gradients": self.samples}

    def work(self, problems: int) -> tuple[float, float]:
        """One gradient per example."""
        return float(self.samples * problems), 0.0

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """One regression per problem."""
        if knowledge.public.training.is_local:
            raise Unsupported("with local steps auxiliary gradients would be those of one step, without the defense")
        problems = task.problems(knowledge)
        images, labels, explained, late = [], [], [], 0
        for index, problem in enumerate(problems):
            guess = knowledge.auxiliary.images.mean(0).expand(problem.gradient.records, -1, -1, -1).clone()
            label = None
            if usable(problem.gradient.values):
                late += knowledge.time_left() <= 0
                source = source_of(knowledge, problem)
                found, share, label, _ = self.solve(knowledge, problem, source)
                late += found is not None and knowledge.time_left() <= 0
                explained.append(share)
                guess = guess if found is None else found
            images.append(guess)
            labels.append(labels_of(knowledge, problem) if label is None else label)
            knowledge.progress(f"problem {index + 1} of {len(problems)}")
        flags = gradient_flags(problems)
        if late:
            flags.append(f"{STOPPED} in {late} of {len(problems)} problems")
        mean = sum(explained) / len(explained) if explained else 0.0
        return ReconstructionAnswer(tuple(images), tuple(flags), {"explained": mean}, tuple(labels))

    def solve(self, knowledge: Knowledge, problem: Inversion, source: Source) -> Solved:
        """The images of one problem."""
        inverter = self.inverter(knowledge, problem, source)
        if inverter is None:
            return Solved(None, 0.0)
        return Solved(inverter(problem.gradient.values), inverter.ridge.explained)

    def inverter(
        self, knowledge: Knowledge, problem: Inversion, source: Source, moments: Moments | None = None
    ) -> Inverter | None:
        """What is learned from auxiliary images; None without time."""
        random = knowledge.generator_for(problem, "ridge")
        names = knowledge.task.parameter_names
        sketch = Sketch({name: problem.gradient.values[name] for name in names}, self.bins, random)
        batches = auxiliary_batches(knowledge, problem, self.samples, flip=self.flip)
        seed = int(torch.randint(2**62, (1,), generator=random))
        return learn(knowledge, source, batches, sketch, self.penalties, seed, moments)


def usable(gradient: Parameters) -> bool:
    """Whether a gradient holds numbers, not all of them zero."""
    return all(bool(v.isfinite().all()) for v in gradient.values()) and any(bool(v.any()) for v in gradient.values())
