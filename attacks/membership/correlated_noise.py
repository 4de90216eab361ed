"""Which records are in a batch, from noise that is correlated over rounds: cancel what other rounds tell about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import Knowledge
from leakboard.attacks.membership.building_blocks.batch import (
    BatchMembership,
    Mixture,
    flat,
    own_loss,
    transformed_parts,
)
from leakboard.attacks.membership.building_blocks.noisy_means import combinations, estimate
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Gradient, Reading
from leakboard.federation.payload import Parameters


@dataclass(frozen=True)
class Denoised(Mixture):
    """A mean whose noise was reduced.

    `deviation` is what is left, `plain` what the best single combination has, `length` that of a record's own gradient.
    """

    deviation: float
    plain: float
    length: float


class CorrelatedNoise(BatchMembership):
    """Batch membership against noise that partly cancels from round to round (matrix factorisation).

    The noise of all rounds is n = M z with z independent and M public (`Defense.noise_over_rounds`). A view holds
    linear combinations d = A (g + n) of the noisy means: sums that the server opened, and differences of models, which
    are sums of past means. The attack estimates the mean g_t of the round by generalised least squares,

        g_t = a' Q^{-1} d / (a' Q^{-1} a),   Q = A (M M' + tau^2 G) A',   a = A e_t,

    in which the means of all other rounds are a nuisance: of size tau, half of it common to all rounds (G). tau is that
    of auxiliary records. The rest is the regression of `BatchMembership` with the ridge that fits the noise that is
    left. Of the probes only the first one of the last round counts, as the round that would have come next. Noise that
    is calibrated for the whole sequence bounds what this attack can gain. Where it is too small, or used twice, the
    attack finds the batch.
    """

    name: ClassVar[str] = "correlated-noise"
    citation: ClassVar[str] = (
        "LeakBoard: least squares over rounds against the noise of Denisov et al., Improved Differential Privacy for "
        "SGD via Optimal Private Linear Operators on Adaptive Streams, NeurIPS 2022"
    )
    threats: ClassVar[tuple[str, ...]] = ("server", "server+keys", "server+clients", "client")
    can_adapt: ClassVar[bool] = True

    guides: int = Field(64, ge=1, description="auxiliary records that tell how large gradients are")

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses how the scheme makes its noise."""
        return True

    def _numbers(self, mixture: Mixture) -> dict[str, float]:
        """How far the noise was reduced."""
        assert isinstance(mixture, Denoised)
        return {"noise_left": mixture.deviation, "noise_over_plain": mixture.deviation / mixture.plain}

    def mixtures(self, knowledge: Knowledge, round_index: int) -> dict[str, Mixture]:
        """The mean of that round over all clients, with as little noise as the view allows."""
        training, defense = knowledge.public.training, knowledge.defense
        if defense.noise_over_rounds(knowledge.public, training.batch_size) is None:
            raise Unsupported(f"the noise of '{defense.name}' is independent from round to round: nothing cancels")
        missing = training.misses_at_random or training.dropouts  # steps between models are those of other rounds too
        if training.is_local or training.weight_decay or missing:
            raise Unsupported("local steps, weight decay and missing clients are not modelled")
        model = next((r.model for r in knowledge.readings() if _is(r, "train", round_index)), None)
        seen = list(combinations(knowledge))
        if model is None or not any(bool(one.weights[round_index]) for one in seen):
            raise Unsupported(f"this view ({knowledge.view.threat}) holds nothing that the mean of the round is in")
        clients = training.per_round
        like = Gradient({name: model[name] for name in knowledge.task.parameter_names}, clients, clients)
        transform = defense.mimic_records(like, knowledge.public)
        guide = Mixture(like, model, own_loss(knowledge.task), model, transform)
        tau, length = _sizes(knowledge, guide, self.guides)
        of_probe = length / sum(value.numel() for value in like.values.values()) ** 0.5
        values, deviation, plain = estimate(seen, round_index, tau, of_probe)
        mean = Gradient(_shaped(values, like.values), clients, clients * training.batch_size)
        return {AGGREGATE: Denoised(mean, model, guide.loss, model, transform, deviation, plain, length)}

    def _judged(self, knowledge: Knowledge, candidates: LabelledImages, mixture: Mixture) -> tuple[Tensor, Tensor, str]:
        """Scores (N,), decisions (N,): a regression whose ridge is that of the noise, for members by a coin."""
        assert isinstance(mixture, Denoised)
        ridge = 2 * (mixture.deviation * mixture.mean.records / max(mixture.length, 1e-300)) ** 2
        pool = joined(candidates, knowledge.auxiliary.select(torch.arange(len(knowledge.auxiliary))[: self.background]))
        fitting = self.model_copy(update={"ridge": max(self.ridge, ridge)})
        scores = fitting._by_regression(knowledge.task, pool, mixture)[: len(candidates)]
        return scores, scores > 0.5, "ridge regression of the mean with less noise"


def _sizes(knowledge: Knowledge, mixture: Mixture, count: int) -> tuple[float, float]:
    """Of auxiliary records: the size of a value of their mean gradient, and the length of a record's own."""
    chosen = knowledge.auxiliary.select(torch.arange(min(count, len(knowledge.auxiliary))))
    parts = torch.cat([flat(part) for part in transformed_parts(knowledge.task, chosen, mixture)])
    return float(parts.mean(0).square().mean().sqrt()), float(parts.square().sum(1).mean().sqrt())


def _shaped(values: Tensor, like: Parameters) -> Parameters:
    pieces = torch.split(values, [value.numel() for value in like.values()])
    return {name: piece.view(value.shape) for (name, value), piece in zip(like.items(), pieces, strict=True)}


def _is(reading: Reading, kind: str, round_index: int) -> bool:
    return reading.context.kind == kind and reading.context.round == round_index
