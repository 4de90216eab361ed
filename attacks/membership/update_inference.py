"""Which records are in the victim's batch, from the step between two consecutive models that a client receives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.attacks.building_blocks.stripping import Diverged, Received, Stripper, data_free, strip
from leakboard.attacks.membership.building_blocks.batch import (
    BatchMembership,
    Mixture,
    _by_span,
    own_loss,
    record_factors,
)
from leakboard.attacks.membership.building_blocks.perturbed_steps import (
    SeenStep,
    drawn_model,
    fitted,
    reference,
    seen_step,
    visible_loss,
)
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Gradient, Reading
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.building_blocks.summed_codes import SummedGradient, remainder
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import VICTIM

#: r is fitted too only if the gradient of the client's own and auxiliary records explains this share of the step
EXPLAINED = 0.5


@dataclass(frozen=True)
class InferredMean(Mixture):
    """The mean gradient that caused a step.

    `exact` says that it contains only this round's records and is in the network's own coordinates, so that rows of the
    first layer are combinations of inputs. `remark` says what was subtracted and what was not.
    """

    exact: bool
    remark: str


class UpdateInference(BatchMembership):
    """Batch membership from what two consecutive models of a client reveal about the others' aggregate update.

    The server's step is W' = W - eta v, v = mu v_before + g + wd W, with g the mean over all clients. Without
    perturbation g is visible,

        g = (W - W') / eta - wd W - mu v_before       (v_before = 0 in the first round),

    and the client subtracts its own part if its view shows what it sent. The rest is the others' mean; with K = 2 it is
    the victim's own gradient. Under model perturbation the step is seen in canonical form, and each candidate's
    gradient is mapped to the same coordinates (`visible`). r is removed: it is fitted to the step if the client's
    records explain the step, otherwise it is estimated from the client's labels. The rest is a regression as in
    `BatchMembership`, in which the attacker's own records join the candidates and the auxiliary ones. They absorb the
    attacker's own part if it is still in the mean.

    If momentum cannot be subtracted (the model of the previous round is not in the view, or that round was lost) a flag
    says so. Who was missing in that round does not matter: the step says what the server made of it.
    """

    name: ClassVar[str] = "update-inference"
    citation: ClassVar[str] = (
        "LeakBoard: differences of models (Melis et al., Exploiting Unintended Feature Leakage in Collaborative "
        "Learning, S&P 2019) in coordinates that rescaling leaves alone (Neyshabur et al. 2015)"
    )
    threats: ClassVar[tuple[str, ...]] = ("client",)
    can_adapt: ClassVar[bool] = True

    # chosen on seeds 11 and 12 of quick's settings (mp and fedsgd, first and last round); tried: ridge 1e-5 to 0.1,
    # pull 1e-3 to 10, r by labels, by medians, by two models, by the fit, with and without the last layer
    ridge: float = Field(1e-2, gt=0, description="lambda")
    pull: float = Field(1.0, ge=0, description="how strongly hidden units keep the scale of torch's initialisation")

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses what the honest reading ignores."""
        return True

    def mixtures(self, knowledge: Knowledge, round_index: int) -> dict[str, Mixture]:
        """The mean that caused the step of that round: over all clients, over the others, or the victim's own."""
        if knowledge.public.training.is_local:
            raise Unsupported("with local steps the step between two models is no mean of gradients at the first one")
        if isinstance(knowledge.defense, ModelPerturbation):
            found = self._through_perturbation(knowledge, knowledge.defense, round_index)
        else:
            found = _in_plain(knowledge, round_index)
        return {VICTIM if found.mean.clients == 1 else AGGREGATE: found}

    def _through_perturbation(self, knowledge: Knowledge, defense: ModelPerturbation, round_index: int) -> InferredMean:
        """The mean from two perturbed models."""
        stripper = Stripper(knowledge.view, defense, "labelled", None)
        before, after = stripper.of("train", round_index), stripper.of("probe", round_index)
        if before is None or after is None:
            raise _missing(knowledge, round_index)
        seen = seen_step(before, after, stripper.expanded, knowledge.public)
        _check(seen.values)
        model = self._model(knowledge, seen, before, stripper.r(before))
        training, clients = knowledge.public.training, len(before.context.participants)
        mean = Gradient(seen.values, clients, clients * training.batch_size)
        remark = ", momentum in it" if training.momentum and round_index else ""
        return InferredMean(
            mean=mean,
            at={name: torch.zeros_like(value) for name, value in seen.values.items()},
            loss=visible_loss(knowledge.task, model, seen),
            model=model,
            transform=defense.mimic_records(mean, knowledge.public),
            exact=False,
            remark=remark,
        )

    def _model(self, knowledge: Knowledge, seen: SeenStep, before: Received, r: Tensor) -> Parameters:
        """The true model before the step, as far as the step and the client's records determine it; r (classes,) by
        labels.

        The fit of r has several minima. It starts once from r by labels and once from the medians of the last layer,
        and the better fit is used.
        """
        public, records = knowledge.public, self._beside(knowledge)
        drawn = drawn_model(seen.form(strip(before, r, seen.expanded)), seen.expanded.wiring)
        transform = knowledge.defense.mimic_records(Gradient(seen.values, 1, 1), public)
        weights = record_factors(knowledge.task, records, drawn, transform)
        by_labels, by_medians = (
            reference(seen, before, start, public, records, weights) for start in (r, data_free(before, seen.expanded))
        )
        fits = [fitted(seen, known, self.pull, free_r=True) for known in (by_labels, by_medians)]
        best = min(fits, key=lambda fit: fit.misfit if math.isfinite(fit.misfit) else math.inf)
        if not best.misfit <= 1 - EXPLAINED:
            best = fitted(seen, by_labels, self.pull, free_r=False)
        if not math.isfinite(best.misfit):
            raise Diverged("no scales of hidden units explain the step: the fit is not finite")
        knowledge.progress(f"the fit leaves {best.misfit:.0%} of the step unexplained")
        return best.model

    def _beside(self, knowledge: Knowledge) -> LabelledImages:
        """The records that the client has: its own, which may be in the mean, and auxiliary ones."""
        count = min(self.background, len(knowledge.auxiliary))
        return joined(*knowledge.view.holdings.values(), knowledge.auxiliary.select(torch.arange(count)))

    def _judged(self, knowledge: Knowledge, candidates: LabelledImages, mixture: Mixture) -> tuple[Tensor, Tensor, str]:
        """Scores (N,), decisions (N,), and the method that gave them."""
        assert isinstance(mixture, InferredMean)
        spanned = _by_span(knowledge, candidates.images, mixture.mean) if mixture.exact else None
        if spanned is not None:
            return *spanned, f"row space of the step{mixture.remark}"
        pool = joined(candidates, self._beside(knowledge))
        scores = self._by_regression(knowledge.task, pool, mixture)[: len(candidates)]
        return scores, scores > 0.5, f"ridge regression of the step{mixture.remark}"


def _in_plain(knowledge: Knowledge, round_index: int) -> InferredMean:
    """The mean from two models that the client received without perturbation."""
    public, task, reading = knowledge.public, knowledge.task, _read(knowledge, "train", round_index)
    before, after = (_model_of(_read(knowledge, kind, round_index)) for kind in ("train", "probe"))
    if reading is None or before is None or after is None:
        raise _missing(knowledge, round_index)
    training, earlier = public.training, _model_of(_read(knowledge, "train", round_index - 1))
    names = task.parameter_names
    if all(torch.equal(before[n], after[n]) for n in names):
        raise Unsupported("the round was lost: the model after it is the one before it")
    values = {n: (before[n].double() - after[n].double()) / training.learning_rate for n in names}
    values = {n: value - training.weight_decay * before[n].double() for n, value in values.items()}
    exact = not (training.momentum and round_index)
    # a round that was lost leaves the model as it is: the momentum is then that of a round before it
    moved = earlier is not None and any(not torch.equal(earlier[n], before[n]) for n in names)
    if not exact and earlier is not None and moved:
        past = {n: (earlier[n].double() - before[n].double()) / training.learning_rate for n in names}
        values, exact = {n: value - training.momentum * past[n] for n, value in values.items()}, True
    _check(values)
    senders, own = set(reading.context.participants), _own_gradient(knowledge, reading)
    held = {AGGREGATE: Gradient(values, len(senders), len(senders) * training.batch_size), **own}
    left = remainder(held, senders, training.batch_size)
    mean = left.get(VICTIM, left[AGGREGATE])
    remark = ("" if exact else ", momentum in it") + (", the own part taken off" if own else "")
    return InferredMean(
        mean=mean,
        at=before,
        loss=own_loss(task),
        model=before,
        transform=knowledge.defense.mimic_records(mean, public),
        exact=exact,
        remark=remark,
    )


def _own_gradient(knowledge: Knowledge, reading: Reading) -> dict[str, Gradient]:
    """What the attacker itself sent in a round, by its name; empty if its view does not show it or a client dropped
    out.

    A client that dropped out may or may not have been counted, so nothing can be subtracted then.
    """
    (me,), context, defense = knowledge.view.parties, reading.context, knowledge.defense
    if knowledge.public.training.may_miss(context.round):
        return {}
    if me in reading.gradients:
        return {me: reading.gradients[me]}
    if isinstance(defense, SummedGradient):
        (observation,) = knowledge.view.of_kind("train", context.round)
        codes = defense.own_codes(observation, knowledge.public).get(me)
        if codes is not None:
            sent: Parameters = defense.decoded(knowledge.public, context, codes, 1)["gradient"]
            return {me: Gradient(sent, 1, context.batch_size)}
    return {}


def _read(knowledge: Knowledge, kind: str, round_index: int) -> Reading | None:
    """The honest reading of the first observation of that kind and round; only the first probe of a round counts."""
    observations = knowledge.view.of_kind(kind, round_index)
    return knowledge.defense.read(observations[0], knowledge.public) if observations else None


def _model_of(reading: Reading | None) -> Parameters | None:
    return None if reading is None else reading.model


def _missing(knowledge: Knowledge, round_index: int) -> Unsupported:
    (me,) = knowledge.view.parties
    return Unsupported(f"{me} did not receive the models before and after the step of round {round_index}")


def _check(step: Parameters) -> None:
    if not all(bool(value.isfinite().all()) for value in step.values()):
        raise Diverged("the step between the two models is not finite: the training diverged")
