"""The questions that `lb.attack` puts to an attack, and its answer in the form in which users get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from leakboard.attacks.base import (
    Attack,
    Inversion,
    KnownMembership,
    MembershipAnswer,
    MembershipAttack,
    MembershipTask,
    ReconstructionAnswer,
    ReconstructionAttack,
    ReconstructionTask,
)
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack
from leakboard.attacks.reconstruction.matching.gradients import Matcher
from leakboard.attacks.reconstruction.matching.labels import labels_of as labels_of_problem
from leakboard.core import registry
from leakboard.core.errors import Unsupported, UserError
from leakboard.core.files import write_bytes
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Gradient
from leakboard.federation.local_training import client_update
from leakboard.leaderboard.api.foreign import GivenKnowledge
from leakboard.leaderboard.goals.question import AttackFailed, GoalQuestion
from leakboard.leaderboard.page.pictures import strip


@dataclass(frozen=True)
class AttackResult:
    """What an attack made of an update: images with their matching cost, or membership scores; flags in both cases.

    `cost` is 1 - cosine between the gradient of the images and the given one (mean over several updates); with local
    steps it is taken between updates. `labels` are those that it was computed with: the known ones, or recovered ones.
    Both are None for membership.
    """

    attack: str
    answer: ReconstructionAnswer | MembershipAnswer
    cost: float | None = None
    labels: Tensor | None = None
    flags: tuple[str, ...] = field(default=())

    @property
    def images(self) -> Tensor:
        """Reconstructed images (N, C, H, W), in [0, 1] units but not clamped; those of several updates in order."""
        if not isinstance(self.answer, ReconstructionAnswer):
            raise UserError(f"The attack '{self.attack}' gives membership scores and no images.")
        return torch.cat(list(self.answer.images))

    @property
    def scores(self) -> Tensor:
        """Membership scores (N,) of the candidates; higher means member."""
        return self._membership.scores

    @property
    def decisions(self) -> Tensor:
        """Which candidates the attack takes for members (N,)."""
        return self._membership.decisions

    @property
    def diagnostics(self) -> Mapping[str, float]:
        """The attack's own numbers."""
        return self.answer.diagnostics

    @property
    def _membership(self) -> MembershipAnswer:
        if not isinstance(self.answer, MembershipAnswer):
            raise UserError(f"The attack '{self.attack}' gives images and no membership scores.")
        return self.answer

    def save(self, path: str | Path, scale: int = 4) -> Path:
        """Write the images side by side into a PNG file, each pixel `scale` times as large."""
        images = self.images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
        try:
            write_bytes(Path(path), strip(images))
        except (OSError, ValueError) as error:
            raise UserError(f"The images cannot be written to {path}: {error}.") from None
        return Path(path)


def reconstruct(
    chosen: ReconstructionAttack,
    knowledge: GivenKnowledge,
    labels: tuple[Tensor, ...] | None,
    problems: int,
    alone: bool,
) -> AttackResult:
    """Images with their matching cost; `alone`: the attacker has no auxiliary images."""
    if not problems:
        raise UserError(f"The attack '{chosen.name}' needs an update: give `gradient`, `update` or `transcript`.")
    size = knowledge.public.training.batch_size
    task = ReconstructionTask("first", 0, problems, size, labels, (size,) * problems)
    answer = cast(ReconstructionAnswer, _answer(chosen, knowledge, task, alone))
    asked = task.problems(knowledge)
    used = torch.stack([labels_of_problem(knowledge, problem) for problem in asked])
    return AttackResult(chosen.name, answer, _cost(knowledge, asked, used, answer), used.flatten(), answer.flags)


def _cost(
    knowledge: GivenKnowledge, problems: tuple[Inversion, ...], labels: Tensor, answer: ReconstructionAnswer
) -> float:
    if knowledge.public.training.is_local:
        return _update_cost(knowledge, problems, labels, answer)
    matcher = Matcher(knowledge.task, problems, labels, 1, knowledge.device)
    return float(matcher.costs(torch.stack(list(answer.images)).float().to(knowledge.device)).mean())


def _update_cost(
    knowledge: GivenKnowledge, problems: tuple[Inversion, ...], labels: Tensor, answer: ReconstructionAnswer
) -> float:
    """The same between updates: that of the client's local steps on the answer, and the given one."""
    costs = []
    for problem, images, own in zip(problems, answer.images, labels, strict=True):
        made, _ = client_update(knowledge.task, problem.model, images.to(knowledge.task.dtype), own)
        seen = cast(Gradient, problem.update).values
        one, other = (torch.cat([values[name].double().flatten() for name in made]) for values in (made, seen))
        costs.append(1 - float(nn.functional.cosine_similarity(one, other, dim=0)))
    return sum(costs) / len(costs)


def infer(
    chosen: MembershipAttack,
    knowledge: GivenKnowledge,
    candidates: LabelledImages | None,
    known: KnownMembership | None,
    gradients: int,
) -> AttackResult:
    """Membership scores of the candidates, from updates or from the model alone."""
    if candidates is None:
        raise UserError(f"The attack '{chosen.name}' needs `candidates`: (images, labels) to be scored.")
    if isinstance(chosen, ShadowAttack) and (known is None or type(chosen).infer is ShadowAttack.infer):
        raise UserError(
            f"The attack '{chosen.name}' trains shadow models, for which it must know the whole training: run it in a "
            "federation (lb.evaluate), or choose an attack on one model (loss-threshold, known-members)."
        )
    if chosen.about == "batch" and not gradients:
        raise UserError(f"The attack '{chosen.name}' needs an update: give `gradient`, `update` or `transcript`.")
    index = 0 if chosen.about == "batch" and gradients == 1 else None
    answer = cast(MembershipAnswer, _answer(chosen, knowledge, MembershipTask(candidates, known, index), False))
    return AttackResult(chosen.name, answer, flags=answer.flags)


def _answer(
    chosen: Attack, knowledge: GivenKnowledge, task: Any, alone: bool
) -> ReconstructionAnswer | MembershipAnswer:
    """The attack's answer, checked; `alone`: the attacker has no auxiliary images."""
    goal = cast(GoalQuestion, registry.create("goal", chosen.goal))
    try:
        answer = goal.call(chosen, knowledge, task)
        goal.accept(answer, task, knowledge.public)
    except Unsupported as error:
        raise UserError(f"The attack '{chosen.name}' does not apply here: {error}.") from None
    except AttackFailed as error:
        hint = "; `auxiliary` images may help" if alone else ""
        raise UserError(f"The attack '{chosen.name}' gave no usable answer: {error}{hint}.") from None
    except UserError:
        raise
    except Exception as error:
        if not alone:
            raise
        raise UserError(
            f"The attack '{chosen.name}' failed without `auxiliary` images, which most such attacks need "
            f"({type(error).__name__}: {error})."
        ) from error
    return cast(ReconstructionAnswer | MembershipAnswer, answer)
