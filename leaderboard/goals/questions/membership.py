"""Membership: which records are asked about, and the form of the scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from leakboard.attacks.base import Attack, Knowledge, KnownMembership, MembershipAnswer, MembershipTask
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.federation.settings import Public, client_name
from leakboard.leaderboard.goals.question import Asked, AttackFailed, CellFacts, GoalQuestion


class MembershipQuestion(GoalQuestion):
    """Which of these records were trained on?"""

    method: ClassVar[str] = "infer"
    answer_type: ClassVar[type[MembershipAnswer]] = MembershipAnswer

    def ask(self, facts: CellFacts, knowledge: Knowledge) -> Asked:
        """The candidates, and the records that the cell tells."""
        asked = facts.observed_round()[1] if facts.cell.about == "batch" else None
        indices, truth, told = _askable(facts)
        known = KnownMembership(facts.pool.take(indices[told]), truth[told]) if told.any() else None
        return Asked(MembershipTask(facts.pool.take(indices[~told]), known, asked))

    def check(self, answer: MembershipAnswer, task: MembershipTask, public: Public) -> None:
        """One finite score and one decision per candidate."""
        if not isinstance(answer.scores, Tensor) or not isinstance(answer.decisions, Tensor):
            given = f"{type(answer.scores).__name__} and {type(answer.decisions).__name__}"
            raise AttackFailed(f"scores and decisions must be tensors; given: {given}")
        if answer.scores.ndim != 1 or answer.decisions.shape != answer.scores.shape:
            raise AttackFailed(
                "scores and decisions must be two vectors of one length; "
                f"given: {tuple(answer.scores.shape)} and {tuple(answer.decisions.shape)}"
            )
        real = not answer.scores.is_complex() and bool(answer.scores.isfinite().all())
        if answer.decisions.dtype != torch.bool or not real:
            raise AttackFailed("decisions must be booleans and scores finite numbers")
        candidates = len(task.candidates)
        if len(answer.scores) != candidates:
            raise AttackFailed(f"the attack must score {candidates} candidates; given: {len(answer.scores)}")

    def tensors(self, answer: MembershipAnswer) -> dict[str, Tensor]:
        """Two vectors."""
        return {"scores": answer.scores.detach().cpu().double(), "decisions": answer.decisions.cpu().to(torch.uint8)}

    def restore(
        self, tensors: Mapping[str, Tensor], flags: tuple[str, ...], diagnostics: Mapping[str, float]
    ) -> MembershipAnswer:
        """The two vectors, and nothing else."""
        if set(tensors) != {"scores", "decisions"}:
            raise ValueError(f"must be scores and decisions; given: {sorted(tensors)!r:.80}")
        decisions = tensors["decisions"]
        decided = decisions.bool() if decisions.dtype == torch.uint8 else decisions
        return MembershipAnswer(tensors["scores"], decided, flags, diagnostics)

    def most_bytes(self, task: MembershipTask, public: Public, attack: Attack) -> int:
        """A double and a byte per candidate."""
        return 9 * len(task.candidates)


def candidates(facts: CellFacts) -> tuple[Tensor, Tensor]:
    """Dataset indices (N,) and the truth (N,) of the evaluated records, shuffled.

    Members that no attacker holds (`about: batch`: the victim's batch of the observed round, or the share of it that
    the cell grants), and all non-members, without those that the cell tells the attacker.
    """
    indices, truth, told = _askable(facts)
    return indices[~told], truth[~told]


def _askable(facts: CellFacts) -> tuple[Tensor, Tensor, Tensor]:
    """All records that could be asked about, shuffled: indices, truth, and which are told (the same share of both)."""
    cell, splits = facts.cell, facts.splits
    if cell.about == "batch":
        members = _pooled(facts, _batch(facts))
        question = ["batch", cell.moment]
    else:
        held = facts.threat.parties
        members = torch.cat([s for i, s in enumerate(splits.shards) if client_name(i) not in held])
        question = []
    indices = torch.cat([members, splits.non_members])
    truth = torch.arange(len(indices)) < len(members)
    seed = derive_seed(facts.private_seed, "candidates", cell.training.dataset.label, *question)
    order = torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))
    indices, truth = indices[order], truth[order]
    told = torch.zeros_like(truth)
    for kind in (truth, ~truth):
        positions = kind.nonzero().squeeze(1)
        told[positions[: round(cell.known_members * len(positions))]] = True
    return indices, truth, told


def _pooled(facts: CellFacts, batch: Tensor) -> Tensor:
    """The members of a batch that are among the candidates: `pool_share` of them, at least one.

    Drawn from a seed that no attack knows; a smaller share is a part of a larger one, so that shares differ in nothing
    else. The rest of the batch is neither asked about nor told.
    """
    share = facts.cell.pool_share
    if share == 1:
        return batch
    seed = derive_seed(facts.private_seed, "pool", facts.cell.training.dataset.label, facts.cell.moment)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    return batch[order[: max(1, round(share * len(batch)))]]


def _batch(facts: CellFacts) -> Tensor:
    """Dataset indices of the records that the victim trained on in the observed round."""
    positions = facts.load_batch(facts.observed_round()[1])
    if positions is None:
        raise Unsupported("the victim dropped out of that round")
    return facts.splits.shards[0][positions]
