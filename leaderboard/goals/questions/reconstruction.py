"""Reconstruction: which gradients are to be inverted, and the form of the images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from leakboard.attacks.base import Attack, Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.federation.settings import Public
from leakboard.leaderboard.goals.question import Asked, AttackFailed, CellFacts, GoalQuestion


class ReconstructionQuestion(GoalQuestion):
    """What do the victim's records look like?"""

    method: ClassVar[str] = "reconstruct"
    answer_type: ClassVar[type[ReconstructionAnswer]] = ReconstructionAnswer

    def ask(self, facts: CellFacts, knowledge: Knowledge) -> Asked:
        """One problem per probe of the observed round."""
        moment, round_index = facts.observed_round()
        size, cell = facts.batch_size, facts.cell
        labels = tuple(torch.split(facts.pool.labels[targets(facts)], size)) if cell.known_labels else None
        numbers = facts.observe.probes(size)
        sizes = (size,) * len(numbers)
        task = ReconstructionTask(moment, round_index, len(numbers), size, labels, sizes, first=numbers.start)
        # how many images each problem asks for follows from its gradient; more would let the truth pick the best
        return Asked(replace(task, sizes=tuple(problem.gradient.records for problem in task.problems(knowledge))))

    def check(self, answer: ReconstructionAnswer, task: ReconstructionTask, public: Public) -> None:
        """Exactly as many images as records are behind each gradient: matching more would be choosing by the truth.

        One problem without numbers fails the cell. To leave it out would flatter the attack's mean, and to call it grey
        would be an answer that the attack did not give. An attack that may diverge returns the best finite images.
        """
        sizes, shape = task.sizes, public.shape
        if not isinstance(answer.images, tuple | list):
            raise AttackFailed(f"images must be a tuple of tensors; given: {type(answer.images).__name__}")
        if len(answer.images) != len(sizes):
            raise AttackFailed(f"the attack must answer {len(sizes)} problems; given: {len(answer.images)}")
        for images, size in zip(answer.images, sizes, strict=True):
            fits = isinstance(images, Tensor) and images.is_floating_point() and tuple(images.shape) == (size, *shape)
            if not fits:
                given = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
                raise AttackFailed(f"images must be float {(size, *shape)}; given: {given}")
        broken = sum(not bool(images.isfinite().all()) for images in answer.images)
        if broken:
            raise AttackFailed(
                f"images must hold finite numbers; {broken} of {len(sizes)} problems have others (NaN, inf)"
            )
        if answer.labels is not None:
            _check_labels(answer.labels, sizes, public.classes)

    def tensors(self, answer: ReconstructionAnswer) -> dict[str, Tensor]:
        """The images of each problem, and the labels where there are any."""
        found = {f"images/{i}": images.detach().cpu().float() for i, images in enumerate(answer.images)}
        return found | {f"labels/{i}": labels.detach().cpu() for i, labels in enumerate(answer.labels or ())}

    def restore(
        self, tensors: Mapping[str, Tensor], flags: tuple[str, ...], diagnostics: Mapping[str, float]
    ) -> ReconstructionAnswer:
        """The images of each problem, numbered from 0; KeyError where a number is missing or another name is there."""
        labelled = any(name.startswith("labels/") for name in tensors)
        problems = range(len(tensors) // 2 if labelled else len(tensors))
        labels = tuple(tensors[f"labels/{i}"] for i in problems) if labelled else None
        return ReconstructionAnswer(tuple(tensors[f"images/{i}"] for i in problems), flags, diagnostics, labels)

    def most_bytes(self, task: ReconstructionTask, public: Public, attack: Attack) -> int:
        """All pixels as floats, and a label per image."""
        return sum(task.sizes) * (4 * math.prod(public.shape) + 8)


def _check_labels(labels: object, sizes: tuple[int, ...], classes: int) -> None:
    """One class per image."""
    if not isinstance(labels, tuple | list) or len(labels) != len(sizes):
        raise AttackFailed(f"labels must be a tuple of {len(sizes)} tensors, or None")
    for given, size in zip(labels, sizes, strict=True):
        fits = isinstance(given, Tensor) and given.dtype == torch.int64 and tuple(given.shape) == (size,)
        if not fits or not bool(((given >= 0) & (given < classes)).all()):
            raise AttackFailed(f"labels must be int64 ({size},), each from 0 to {classes - 1}")


def targets(facts: CellFacts) -> Tensor:
    """Dataset indices of the victim's records that a reconstruction is after, batch by batch."""
    places = facts.observe.records(facts.batch_size)
    return facts.splits.shards[0][places.start : places.stop]
