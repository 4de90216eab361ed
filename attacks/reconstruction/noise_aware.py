"""Gradient matching by the likelihood of the noise, for a server that drew R."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import (
    NOTHING_TO_IMITATE,
    STOPPED,
    Inversion,
    Knowledge,
    ReconstructionAnswer,
    ReconstructionTask,
    gradient_flags,
)
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.matching.descent import Descent
from leakboard.attacks.reconstruction.matching.gradients import starting_points
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.attacks.reconstruction.matching.likelihood import (
    ImagePrior,
    Joint,
    Law,
    LikelihoodMatcher,
    References,
    law_of,
    references,
)
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import AGGREGATE, Gradient, Transform
from leakboard.federation.settings import VICTIM


class NoiseAware(InvertingGradients):
    """Matching by likelihood: each value of the gradient is weighted by the amount of noise on it.

    The server drew R, so it knows the deviation s_i = R_i * const of the noise on each value of a recovered gradient:

        min_x  sum_i (g_i(x) - g_i)^2 / s_i^2  (scaled)  +  prior * P(x)  +  tv * TV(x),   x in [0, 1],

    with P(x) from a Gaussian fitted to auxiliary images. If all neighbours collude only eta is left, which is uniform
    given R: the cost is then how far g(x) lies outside |g_i(x) - g_i| <= sqrt2 sigma_eta R_i. The attack imitates what
    the defense does deterministically to the gradient of a single record or client (clipping). Auxiliary records tell
    how large a gradient to expect. By their likelihood they also give the label of a single record and the starting
    point: their mean, weighted by likelihood. If their gradients are below the noise (sum_i g_i^2 / s_i^2 < 1) that
    mean is the answer. If no noise is known this is `inverting-gradients`.

    Noise cannot be averaged out, because each batch has other records. Only the targets of the probes return in each
    observed round, on another model; `rounds: all` adds up the costs of all rounds in the view.
    """

    name: ClassVar[str] = "noise-aware"
    citation: ClassVar[str] = "LeakBoard: maximum likelihood given R, after Geiping et al., NeurIPS 2020"

    # chosen on seed 11 of quick's settings, mp-dp with all neighbours colluding, first round; tried: rates .005 to .3,
    # tv .01 to .5, prior 0 to 3. Without the prior, at the rate of inverting-gradients, images turn into noise in
    # bounds
    learning_rate: float = Field(0.02, gt=0, description="in image units")
    tv: float = Field(0.0, ge=0, description="weight of the total variation of images in [0, 1]")
    prior: float = Field(0.3, ge=0, description="weight of the Gaussian of auxiliary images")
    mimic: bool = Field(True, description="imitate what the defense does to the gradient of a record or client")
    rounds: Literal["one", "all"] = Field("one", description="all: match the same records in all observed rounds")
    auxiliary: int = Field(256, ge=1, description="how many auxiliary records are compared with the observation")

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses the distribution of the noise."""
        return True

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert all problems in one optimisation if the noise is known."""
        if knowledge.public.training.is_local:
            raise Unsupported("the noise is on the update of several local steps, and the likelihood is of a gradient")
        asked = [replace(task, round_index=index) for index in self._rounds(knowledge, task)]
        problems = task.problems(knowledge)
        laws = [self._laws(knowledge, one, one.problems(knowledge)) for one in asked]
        if any(law is None for law in laws):
            plain = super().reconstruct(knowledge, task)
            return replace(plain, flags=(*plain.flags, f"{NOTHING_TO_IMITATE}: no noise of a known law"))
        return self._by_likelihood(knowledge, asked, problems, [law for law in laws if law is not None])

    def _rounds(self, knowledge: Knowledge, task: ReconstructionTask) -> list[int]:
        """The task's round, and with `rounds: all` also the other observed ones."""
        others = {o.context.round for o in knowledge.view.of_kind("probe")} - {task.round_index}
        return [task.round_index, *(sorted(others) if self.rounds == "all" else ())]

    def _laws(
        self, knowledge: Knowledge, task: ReconstructionTask, problems: tuple[Inversion, ...]
    ) -> tuple[Law, ...] | None:
        """One law per problem; None if the noise of any problem is unknown."""
        found: dict[int, Law] = {}
        for observation in knowledge.view.of_kind("probe", task.round_index):
            known = knowledge.defense.noise_scale(observation, knowledge.public)
            noise, place = known.get(VICTIM) or known.get(AGGREGATE), task.place(observation.context)
            if place is None:
                continue
            if noise is None or place >= len(problems):
                return None
            transforms = self._transforms(knowledge, problems[place].gradient)
            found[place] = law_of(knowledge.task, problems[place], noise, transforms, knowledge.device)
        if len(found) != len(problems):  # the gradients are not from the view's honest reading (mix-and-match)
            return None
        return tuple(found[place] for place in range(len(problems)))

    def _transforms(self, knowledge: Knowledge, seen: Gradient) -> tuple[Transform, ...]:
        """What the defense does to the gradient of candidates, if that gradient is of one record or one client."""
        if not self.mimic:
            return ()
        of_record = knowledge.defense.mimic_records(seen, knowledge.public) if seen.records == 1 else None
        of_client = knowledge.defense.mimic(seen, knowledge.public) if seen.clients == 1 else None
        return tuple(transform for transform in (of_record, of_client) if transform is not None)

    def _by_likelihood(
        self,
        knowledge: Knowledge,
        asked: list[ReconstructionTask],
        problems: tuple[Inversion, ...],
        laws: list[tuple[Law, ...]],
    ) -> ReconstructionAnswer:
        rounds = [problems, *(one.problems(knowledge) for one in asked[1:])]
        seen = reduce(
            References.plus,
            [references(knowledge, p[0].model, law, self.auxiliary) for p, law in zip(rounds, laws, strict=True)],
        )
        records = problems[0].gradient.records
        # the mean over several records has the energy of one divided by their number, if they have little in common
        scales = tuple(replace(s, energy=s.energy / records) for s in seen.scales())
        labels = torch.stack([self._labels(knowledge, seen, i, problem) for i, problem in enumerate(problems)])
        x = starting_points(knowledge, problems, self.restarts)
        prior = torch.stack([seen.posterior_mean(i) for i in range(len(problems))])[:, None].to(x)
        if records > 1:
            prior = knowledge.auxiliary.images.mean(0).to(x).expand(len(problems), records, -1, -1, -1)
        else:
            x[: len(problems)] = prior
        matchers = [
            LikelihoodMatcher(knowledge.task, p, labels, self.restarts, knowledge.device, law, scales)
            for p, law in zip(rounds, laws, strict=True)
        ]
        images_like = ImagePrior(seen.records.images, self.prior, knowledge.device)
        best = Descent(self.iterations, self.learning_rate, self.tv)(knowledge, Joint([*matchers, images_like]), x)
        images, costs = best.of_restarts(self.restarts)
        useful = torch.tensor([s.informative for s in scales])
        images = torch.where(useful.view(-1, 1, 1, 1, 1), images, prior.cpu())
        flags = gradient_flags(problems)
        if best.iterations < self.iterations:
            flags.append(f"{STOPPED} after {best.iterations} of {self.iterations} iterations")
        if not bool(useful.all()):
            lost = int((~useful).sum())
            flags.append(f"drowned in noise, weighed mean of auxiliary images returned: {lost} of {len(problems)}")
        energy = sum(s.energy for s in scales) / len(scales)
        outside = sum(s.outside for s in scales) / len(scales)
        found = {"matching_cost": float(costs.mean()), "energy": energy, "outside": outside}
        return ReconstructionAnswer(tuple(images), tuple(flags), found, tuple(labels))

    def _labels(self, knowledge: Knowledge, seen: References, index: int, problem: Inversion) -> Tensor:
        """The labels that the cell grants, or by likelihood for a single record, or as the plain attack finds them."""
        if problem.labels is None and problem.gradient.records == 1:
            return seen.label(index, knowledge.public.classes)
        return labels_of(knowledge, problem)
