"""Reconstruction: the victim's images, from what was sent for a batch of them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from leakboard.attacks.base import ReconstructionAnswer
from leakboard.core.seeds import derive_seed
from leakboard.federation.task import task_of
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.goals.question import CellFacts
from leakboard.leaderboard.goals.questions.reconstruction import ReconstructionQuestion, targets
from leakboard.leaderboard.records.known import Listed
from leakboard.leaderboard.records.record import PRIOR, ScoreRecord
from leakboard.metrics.base import ReconstructionTruth
from leakboard.metrics.matching import match
from leakboard.metrics.psnr import psnr


class Reconstruction(ReconstructionQuestion, Goal):
    """Rebuild the victim's images."""

    name: ClassVar[str] = "reconstruction"
    citation: ClassVar[str] = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019"
    per_round: ClassVar[bool] = True
    per_batch_size: ClassVar[bool] = True
    prior: ClassVar[str] = PRIOR
    position: ClassVar[int] = 0
    shows_answer: ClassVar[bool] = True
    per_target: ClassVar[tuple[str, ...]] = ("psnr", "identified")
    expected: ClassVar[tuple[str, ...]] = ("lpips",)
    headlines: ClassVar[tuple[str, ...]] = ("identified", "psnr")
    listed: ClassVar[tuple[str | Listed, ...]] = (
        Listed("batch", "batch size", "batch_size", digits=0, hint="records of the victim behind one gradient"),
        "psnr",
        "ssim",
        "lpips",
        "identified",
        "identified_lpips",
        "mse",
        "test_mse",
        "feat_mse",
    )

    def truth(self, facts: CellFacts, answer: ReconstructionAnswer) -> ReconstructionTruth:
        """Images matched to the originals of their batch, and what the true model says of both."""
        indices = targets(facts)
        originals = facts.pool.take(indices).images
        matched = [
            images.cpu()[match(images.cpu(), original)]
            for images, original in zip(answer.images, torch.split(originals, facts.batch_size), strict=True)
        ]
        reconstruction = torch.cat(matched)
        public = facts.load_public()
        labels, recovered, why = labels_to_score(facts, answer, indices)
        task, model = task_of(public), facts.load_model(facts.observed_round()[1])
        return ReconstructionTruth(
            reconstruction=reconstruction,
            original=originals,
            mean=public.mean,
            std=public.std,
            reconstruction_logits=task.predict(model, reconstruction.clamp(0, 1)),
            original_logits=task.predict(model, originals),
            decoys=_decoys(facts, indices),
            labels=labels,
            recovered_labels=recovered,
            no_labels=why,
        )

    def items_of(self, facts: CellFacts, answer: ReconstructionAnswer) -> dict[str, Any]:
        """The victim's records."""
        return {"target_indices": targets(facts).tolist()}

    def remarks(self, facts: CellFacts, truth: ReconstructionTruth, scores: dict[str, ScoreRecord]) -> list[str]:
        """Say where an attack is no better than the mean auxiliary image."""
        if facts.cell.attack.name == self.prior:
            return []
        guess = facts.pool.take(facts.splits.auxiliary).images.mean(0).expand_as(truth.original)
        floor, found = float(psnr(guess, truth.original).mean()), scores["psnr"].value
        if found is None or found > floor:
            return []
        return [f"no better than the prior: the mean auxiliary image has {floor:.2f} dB"]


def labels_to_score(
    facts: CellFacts, answer: ReconstructionAnswer, indices: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None, str]:
    """The true labels of each batch, the recovered ones, and why these are not scored ("" if they are)."""
    true = tuple(torch.split(facts.pool.labels[indices], facts.batch_size))
    if facts.cell.known_labels:
        return true, None, "the attack was told the labels"
    if answer.labels is not None and any(len(own) != len(real) for own, real in zip(answer.labels, true, strict=True)):
        return true, None, "the labels are those of several clients: nobody knows which are the victim's"
    return true, answer.labels, ""


def _decoys(facts: CellFacts, indices: Tensor) -> Tensor:
    """Other members and auxiliary images among which `identified` looks, the same for all defenses."""
    others = torch.cat([facts.splits.members, facts.splits.auxiliary])
    others = others[~torch.isin(others, indices)]
    seed = derive_seed(facts.private_seed, "decoys", facts.cell.training.dataset.label)
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))
    return facts.pool.take(others[order[: facts.cell.decoys]]).images
