"""Phi inversion: reconstruct from what model perturbation sends without noise."""

from __future__ import annotations

from typing import ClassVar

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
)
from leakboard.attacks.reconstruction.matching.descent import Best, Descent
from leakboard.attacks.reconstruction.matching.gradients import Matcher, starting_points
from leakboard.attacks.reconstruction.perturbation.phi_batch import BatchMatcher, Streams
from leakboard.attacks.reconstruction.perturbation.phi_guess import Guesser
from leakboard.attacks.reconstruction.perturbation.phi_layer import Found, has_closed_form, solve
from leakboard.attacks.reconstruction.perturbation.phi_matching import record_problem
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.settings import VICTIM


class PhiInversion(ReconstructionAttack):
    """Reconstructs from Psi and Phi, which clients of a perturbed model send without noise.

    Phi is the gradient of mean 1/2 alpha^2 and Psi that of mean alpha (y - onehot) . d, with respect to weights that
    the server knows (`defenses.perturbation.clean`). Through a fully connected first layer both are solved in closed
    form (`perturbation.phi_layer`), batches by sparse disaggregation. If that does not apply or fails, they are matched
    as `inverting-gradients` does. Without biases Phi determines an image only up to its contrast, so the matching also
    includes the logarithm of the gradient's size:

        min_x  1 - cosine(g(x), g)  +  size * log(||g(x)|| / ||g||)^2  +  tv * TV(x),   x in [0, 1].

    One record (`perturbation.phi_matching`): its label and clipping factor are found first, then g is Phi and Psi,
    separated. Several records (`perturbation.phi_batch`): the cost is the mean over Phi and Psi. Labels come from Psi
    and from a regression on auxiliary records; their images of these classes are also the starting point
    (`perturbation.phi_guess`). Clipping factors are those of the candidates, recomputed every few iterations.

    How the settings for batches were chosen: on quick's settings (digits, convnet, `mp-dp`, first round) at seed 11,
    which no suite uses, 8 images of each of the batch sizes 2 and 4, 300 iterations. Tried: one random combination of
    Phi and Psi, Phi and Psi in turn, both in parallel (chosen), all of V1's classes in parallel (nine times the time,
    no better); rates 0.3 and 0.1 (chosen); tv 0.003 to 0.03 (0.01 as in the suites). The images of the regression as
    the starting point were compared with noise at batch 2 only. Batch 8 was not tuned.
    """

    name: ClassVar[str] = "phi-inversion"
    citation: ClassVar[str] = "LeakBoard (docs/adaptive.md); matching after Geiping et al., NeurIPS 2020"
    can_adapt: ClassVar[bool] = True

    iterations: int = Field(1000, ge=1, le=1_000_000, description="of the matching")
    restarts: int = Field(1, ge=1, le=64, description="of the matching")
    learning_rate: float = Field(0.3, gt=0, description="in image units")
    batch_rate: float = Field(0.1, gt=0, description="learning rate for batches, which start near an answer")
    tv: float = Field(3e-2, ge=0, description="weight of the total variation of images in [0, 1]")
    size: float = Field(0.1, ge=0, description="weight of the gradient's size")
    samples: int = Field(200_000, ge=1, description="how many row sets may be drawn to separate one batch")
    tolerance: float = Field(1e-3, gt=0, description="relative error of the re-computed Phi that counts as exact")

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses more of the defense than its honest reading."""
        return True

    def refuses(self, defense: Defense) -> str:
        """Only model perturbation sends Phi."""
        return "" if isinstance(defense, ModelPerturbation) else _no_phi(defense)

    def budget(self) -> dict[str, int]:
        """Iterations and restarts of the matching, and row sets of the closed form."""
        return {"iterations": self.iterations, "restarts": self.restarts, "samples": self.samples}

    def work(self, problems: int) -> tuple[float, float]:
        """An iteration costs about three gradients: forward, backward, and backward through the gradient."""
        return 3.0 * self.iterations * self.restarts * problems, 0.0

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Solve the problems that have a closed form, and match the rest in one optimisation."""
        given = _parts(knowledge, task)
        flags = _flags(given)
        exact = self._solved(knowledge, given)
        left = [index for index, found in enumerate(exact) if found is None]
        answer = {index: (found.images.float(), found.labels) for index, found in enumerate(exact) if found is not None}
        diagnostics = {"solved": float(len(given) - len(left))}
        if left:
            told = [task.known_labels[index] if task.known_labels is not None else None for index in left]
            matched, cost, more = self._match(knowledge, [given[index] for index in left], told)
            answer |= dict(zip(left, matched, strict=True))
            diagnostics["matching_cost"] = cost
            flags += more
        images, labels = zip(*(answer[index] for index in range(len(given))), strict=True)
        return ReconstructionAnswer(images, tuple(flags), diagnostics, labels)

    def _solved(self, knowledge: Knowledge, given: tuple[CleanParts, ...]) -> list[Found | None]:
        """What the closed form finds of each problem; None for those that it does not solve."""
        answer: list[Found | None] = []
        for index, parts in enumerate(given):
            found = None
            if has_closed_form(knowledge.task, parts) and knowledge.time_left() > 0:
                random = knowledge.generator_for(_whole(parts), "rows")
                found = solve(knowledge, parts, self.samples, self.tolerance, random)
                residual = "not found" if found is None else f"residual {found.residual:.2g}"
                knowledge.progress(f"problem {index + 1} of {len(given)} in closed form: {residual}")
            answer.append(found)
        return answer

    def _match(
        self, knowledge: Knowledge, given: list[CleanParts], labels: list[Tensor | None]
    ) -> tuple[list[tuple[Tensor, Tensor]], float, list[str]]:
        """Images and labels of each problem, the mean matching cost, and flags."""
        best, found = (
            self._of_records(knowledge, given) if given[0].records == 1 else self._of_batches(knowledge, given, labels)
        )
        images, costs = best.of_restarts(self.restarts)
        flags = []
        if best.iterations < self.iterations:
            flags.append(f"{STOPPED} after {best.iterations} of {self.iterations} iterations")
        costs = costs.nan_to_num(1.0)
        if float(costs.median()) > 0.5:
            flags.append("not converged: the median matching cost is above 0.5")
        return list(zip(images, found, strict=True)), float(costs.mean()), flags

    def _of_records(self, knowledge: Knowledge, given: list[CleanParts]) -> tuple[Best, list[Tensor]]:
        """Match problems with one record each; also their labels."""
        asked = [record_problem(knowledge, parts) for parts in given]
        problems = tuple(one.problem for one in asked)
        targets = torch.stack([one.targets for one in asked])
        matcher = Matcher(knowledge.task, problems, targets, self.restarts, knowledge.device, size=self.size)
        start = starting_points(knowledge, tuple(_whole(parts) for parts in given), self.restarts)
        best = Descent(self.iterations, self.learning_rate, self.tv)(knowledge, matcher, start)
        return best, [one.label for one in asked]

    def _of_batches(
        self, knowledge: Knowledge, given: list[CleanParts], labels: list[Tensor | None]
    ) -> tuple[Best, list[Tensor]]:
        """Match problems with several records each; also their labels."""
        streams = Streams(knowledge.task, given, knowledge.device)
        guesser = Guesser(knowledge, streams)
        found = []
        for index, parts in enumerate(given):
            random = knowledge.generator_for(_whole(parts), "guess")
            found.append(guesser(index, labels[index], random, self.restarts))
            knowledge.progress(f"labels and first images of problem {index + 1} of {len(given)}")
        matcher = BatchMatcher(
            streams, torch.stack([one.labels for one in found]), self.restarts, self.size, knowledge.seed
        )
        start = torch.stack([one.images for one in found], dim=1).flatten(0, 1).to(knowledge.device)
        best = Descent(self.iterations, self.batch_rate, self.tv, last=True)(knowledge, matcher, start)
        return best, [one.labels for one in found]


def _no_phi(defense: Defense) -> str:
    return f"phi-inversion needs a defense with model perturbation: clients of '{defense.name}' send no Phi"


def _parts(knowledge: Knowledge, task: ReconstructionTask) -> tuple[CleanParts, ...]:
    """The victim's Phi and Psi, one per probe; raises `Unsupported` if the view holds none."""
    defense, view = knowledge.defense, knowledge.view
    if not isinstance(defense, ModelPerturbation):
        raise Unsupported(_no_phi(defense))
    found: dict[int, CleanParts] = {}
    for observation in view.of_kind("probe", task.round_index):
        place = task.place(observation.context)
        if place is None:
            continue
        parts = defense.clean_parts(observation, view.public)
        if VICTIM not in parts:
            raise Unsupported(
                f"this view ({view.threat}) of {defense.name} does not hold the victim's own Phi without noise"
            )
        found[place] = parts[VICTIM]
    return tuple(found[place] for place in range(task.probes))


def _whole(parts: CleanParts) -> Inversion:
    """Phi as an inversion problem, to seed the draws that belong to it."""
    return Inversion(parts.model, Gradient(parts.phi, 1, parts.records), None)


def _flags(given: tuple[CleanParts, ...]) -> list[str]:
    """Flags for a Phi without information: all zero, or not finite."""
    flags = []
    if any(not any(bool(g.any()) for g in parts.phi.values()) for parts in given):
        flags.append("Phi all zero")
    broken = sum(not all(bool(g.isfinite().all()) for g in parts.phi.values()) for parts in given)
    if broken:
        flags.append(f"Phi holds no numbers: {broken} of {len(given)} problems")
    return flags
