"""The likelihood ratio of two neighbouring worlds, from one run of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacks.base import AuditAnswer, AuditAttack, AuditTask, Knowledge
from core.errors import Unsupported
from datasets.base import LabelledImages
from defenses._model_perturbation import ModelPerturbation
from defenses.base import AGGREGATE, Defense, Reading
from defenses.mp_dp_plus import MpDpPlus
from defenses.perturbation.client import part_norms
from federation.example_norms import loss_norms
from federation.payload import Parameters, Payload
from federation.settings import SERVER, VICTIM, Public
from federation.task import task_of
from federation.transcript import Observation
from federation.view import View

#: rounding of float32, squared: a distance below this share of the worlds' own counts as none
ROUNDING = 1e-12


@dataclass(frozen=True)
class Evidence:
    """A part of what was seen (d,), what it would be without noise in either world, and the noise's relative size."""

    seen: Tensor
    zero: Tensor
    one: Tensor
    scale: Tensor

    def ratio(self) -> float:
        """log p(seen | world 1) / p(seen | world 0) for Gaussian noise of unknown variance: d/2 log(D_0 / D_1).

        D_b = |(seen - world_b) / scale|^2; D_b / d is the likeliest variance in world b.
        """
        floor = ROUNDING * ((self.one - self.zero) / self.scale).square().sum() + 1e-300
        first, second = (((self.seen - w) / self.scale).square().sum() + floor for w in (self.zero, self.one))
        return float(0.5 * len(self.seen) * (first.log() - second.log()))

    def overhang(self) -> float:
        """How much farther the noise would reach in world 0 than in world 1: for noise of bounded support."""
        first, second = (((self.seen - w) / self.scale).abs().max() for w in (self.zero, self.one))
        return float(first - second)


class LikelihoodAudit(AuditAttack):
    """Tells the worlds apart by the likelihood ratio of what was seen, given what each world would have sent.

    `part: gradient` takes the honest reading's gradient g (the victim's own, else the sum over K clients, in which the
    others' gradients are an unknown constant) and the clipped mean gradients g_0, g_1 of both worlds on the model that
    the server knows:

        d/2 log( |g - g_0|_W^2 / |g - g_1|_W^2 ),  nearly  <g - (g_0 + g_1)/2, W (g_1 - g_0)> / sigma^2

    the Gaussian log-likelihood ratio whose variance is taken from the trial itself. Under model perturbation the noise
    of coordinate ij grows with R_ij, which the server drew: W = 1 / R^2 (`noise_aware`). `part: view` adds the ratio
    of everything else that the message holds in plain numbers (Psi and Phi), against what a client would send
    in either world; what carries no noise then decides alone. `part: support` asks of the gradient's noise only that
    it is bounded, as uniform noise is: max_i |g - g_0|_i / R_i - max_i |g - g_1|_i / R_i.
    """

    name: ClassVar[str] = "audit"
    citation: ClassVar[str] = (
        "Nasr et al., Adversary Instantiation: Lower Bounds for Differentially Private Machine Learning, S&P 2021 "
        "(the game); Neyman and Pearson 1933 (the test)"
    )
    can_adapt: ClassVar[bool] = True

    part: Literal["gradient", "view", "support"] = Field("gradient", description="what the ratio is computed on")
    noise_aware: bool = Field(True, description="weigh coordinates by the noise that the server knows them to carry")

    @property
    def adaptive(self) -> bool:
        """Whether more is used than the honest reading."""
        return self.part != "gradient" or self.noise_aware

    def work(self, problems: int) -> tuple[float, float]:
        """A trial costs some ten gradients: every client's, and both worlds'."""
        return 10.0 * self.trials, 0.0

    def distinguish(self, knowledge: Knowledge, task: AuditTask) -> AuditAnswer:
        """One ratio a trial."""
        worlds = _Worlds(knowledge.defense, task)
        scores = torch.tensor([self._score(worlds, trial) for trial in task.trials], dtype=torch.float64)
        broken = int((~scores.isfinite()).sum())
        flags = (f"gradient holds no numbers: {broken} of {len(scores)} trials",) if broken else ()
        return AuditAnswer(scores.nan_to_num(0.0, 0.0, 0.0), flags)

    def _score(self, worlds: _Worlds, trial: Observation) -> float:
        worlds.look(trial)
        gradient = worlds.gradient(self.noise_aware)
        if self.part == "support":
            return gradient.overhang()
        others = worlds.others() if self.part == "view" else []
        return sum(evidence.ratio() for evidence in (gradient, *others))


class _Worlds:
    """What both worlds would have sent, as the server can compute it, for one trial after the other."""

    def __init__(self, defense: Defense, task: AuditTask) -> None:
        self.defense = defense
        self.public: Public = task.view.public
        self.task = task_of(self.public)
        self.view: View = task.view
        self.batches = task.worlds
        # without noise and clipping: the clipping factors are known better, and enter everything linearly
        off = {"noise": False, "clip": None}
        fields = type(defense).model_fields
        self.client = defense.model_copy(update={name: value for name, value in off.items() if name in fields})
        self.trial: Observation
        self.reading: Reading
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._model: Parameters = {}

    def look(self, trial: Observation) -> None:
        """Turn to this trial."""
        # the updates of others tell nothing of the victim's batch, and reading them takes most of the time
        mine = tuple(m for m in trial.messages if m.kind != "update" or m.sender == VICTIM)
        self.trial = replace(trial, messages=mine)
        (self.reading,) = self.defense.interpret(replace(self.view, observations=(self.trial,)))

    def gradient(self, noise_aware: bool) -> Evidence:
        """The gradient that the honest reading holds, times the number of clients behind it."""
        seen = self.reading.gradients.get(VICTIM) or self.reading.gradients.get(AGGREGATE)
        if seen is None or self.reading.model is None:
            raise Unsupported(
                f"this view ({self.view.threat}) holds neither the victim's gradient nor a mean of it, or no model"
            )
        zero, one = (self._mean_gradient(world) for world in (0, 1))
        scale = self._noise_scale() if noise_aware else None
        flat = _flat(seen.values) * seen.clients
        return Evidence(flat, zero, one, torch.ones_like(flat) if scale is None else _flat(scale))

    def _mean_gradient(self, world: int) -> Tensor:
        """1/B sum_b c_b g_b of a world on the model of this trial; the g_b are kept while the model is the same."""
        model = self.reading.model
        assert model is not None
        if not self._model or any(not torch.equal(model[name], value) for name, value in self._model.items()):
            self._model = model
            self._gradients = [self._each_gradient(batch, model) for batch in self.batches]
        each, norms = self._gradients[world]
        return (self._factors(self.batches[world], norms)[:, None] * each).mean(0)

    def _each_gradient(self, batch: LabelledImages, model: Parameters) -> tuple[Tensor, Tensor]:
        """The gradients (B, d) of the records by themselves, and their norms (B,) as whoever clips finds them."""
        rows = [
            _flat(self.task.gradient(model, image[None], label[None])[0])
            for image, label in zip(batch.images, batch.labels, strict=True)
        ]
        return torch.stack(rows), loss_norms(self.task, model, batch.images, batch.labels).double()

    def _factors(self, batch: LabelledImages, norms: Tensor) -> Tensor:
        """c_b (B,): by the true norm, but under mp-dp+ by those of the perturbed parts."""
        bound: float | None = getattr(self.defense, "clip", None)
        if bound is None:
            return torch.ones_like(norms)
        if not isinstance(self.defense, MpDpPlus):
            return (bound / norms.clamp(min=1e-12)).clamp(max=1.0)
        sent = self._model_message()
        images = self.task.normalise(batch.images.to(self.task.dtype))
        targets = torch.nn.functional.one_hot(batch.labels, self.public.classes).to(images)
        found = part_norms(self.defense.expanded(self.public), sent["model"], sent["direction"], images, targets)
        ratios = [(b / n.clamp(min=1e-12)).double() for n, b in zip(found, self.defense.bounds(), strict=True)]
        return torch.stack(ratios).amin(0).clamp(max=1.0)

    def _noise_scale(self) -> Parameters | None:
        """R, by which the server multiplies what arrives and so its noise; None where there is none to weigh by.

        Weights that are drawn anew in every trial make the others' share of an exact sum, a constant, look like noise.
        """
        if not isinstance(self.defense, ModelPerturbation) or not self._noisy:
            return None
        return self.defense.multiplied_noise(self.trial, self.public, 1.0).deviation

    @cached_property
    def _noisy(self) -> bool:
        """Whether what the server reads carries noise: the same in all trials, so it is asked once."""
        return bool(self.defense.noise_scale(self.trial, self.public))

    def others(self) -> list[Evidence]:
        """All other parts of the victim's message, or of the sum that the server opened, that are plain numbers."""
        body, clients = self._plain_body()
        names = [name for name, part in body.items() if name != "gradient" and _is_numbers(part)]
        if not names:
            return []
        worlds = [self._simulated(world, names) for world in (0, 1)]
        found = []
        for name in names:
            seen, zero, one = _flat(body[name]) * clients, worlds[0][name], worlds[1][name]
            found.append(Evidence(seen, zero, one, torch.ones_like(seen)))
        return found

    def _plain_body(self) -> tuple[Payload, int]:
        """What stands in the place of the victim's update: its own message, or the opened mean over so many clients."""
        opened = self.trial.states.get(SERVER, {}).get("aggregate")
        if opened is not None:
            return opened["update"], int(opened["clients"])
        own = [m.payload for m in self.trial.messages if m.kind == "update" and m.sender == VICTIM]
        return (own[0] if own else {}), 1

    def _simulated(self, world: int, names: list[str]) -> dict[str, Tensor]:
        """1/B sum_b c_b part_b for these parts of the message that a client would send for this world's batch."""
        batch, received = self.batches[world], self._model_message()
        factors = self._factors(batch, self._gradients[world][1])
        found: dict[str, Tensor] = {}
        for image, label, factor in zip(batch.images, batch.labels, factors, strict=True):
            sent = self.client.simulate(self.public, received, image[None], label[None], 0)
            for name in names:
                part = factor * _flat(sent[name]) / len(batch)
                found[name] = found[name] + part if name in found else part
        return found

    def _model_message(self) -> Payload:
        """What the server sent to the clients."""
        return next(m.payload for m in self.trial.messages if m.kind == "model")


def _is_numbers(part: object) -> bool:
    """Whether a part of a message is a dict of real tensors (not ciphertexts, masked words or counts)."""
    return isinstance(part, dict) and bool(part) and all(_real(value) for value in part.values())


def _real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _flat(values: Parameters) -> Tensor:
    """All values in one vector, in the order of the names, in float64."""
    return torch.cat([values[name].double().flatten() for name in sorted(values)])
