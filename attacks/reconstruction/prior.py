"""What anyone would guess without looking at a single message."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from leakboard.attacks.base import Knowledge, ReconstructionAnswer, ReconstructionAttack, ReconstructionTask
from leakboard.core.errors import Unsupported


class Prior(ReconstructionAttack):
    """A guess without an attack: the mean auxiliary image, random ones, or the mean of a known class.

    This is the floor that every reconstruction is compared with. It goes through the same matching and scoring as any
    other attack, and it uses no message.
    """

    name: ClassVar[str] = "prior"
    citation: ClassVar[str] = "Definition: LeakBoard protocol, section Prior"

    guess: Literal["mean", "random", "class-mean"] = Field(
        "mean", description="class-mean needs labels that the cell grants"
    )

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """One guess per target, from the auxiliary images only."""
        images, labels = knowledge.auxiliary.images, knowledge.auxiliary.labels
        if self.guess == "mean":
            answer = [images.mean(0, keepdim=True).repeat(size, 1, 1, 1) for size in task.sizes]
        elif self.guess == "random":
            drawn = torch.randint(len(images), (sum(task.sizes),), generator=knowledge.generator())
            answer = [images[row] for row in torch.split(drawn, list(task.sizes))]
        else:
            if task.known_labels is None:
                raise Unsupported("guess: class-mean needs known labels, but this cell does not grant them")
            overall = images.mean(0)
            means = [
                images[labels == c].mean(0) if (labels == c).any() else overall for c in range(knowledge.public.classes)
            ]
            # in an aggregate only the victim's labels are known: the rest of the answer is the overall mean
            answer = [
                torch.stack([means[int(label)] for label in row] + [overall] * (size - len(row)))
                for row, size in zip(task.known_labels, task.sizes, strict=True)
            ]
        return ReconstructionAnswer(tuple(answer))
