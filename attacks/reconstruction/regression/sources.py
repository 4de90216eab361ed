"""Gradients of images of the attacker's choice, as it would have read them from the victim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad, vmap

from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.matching.grouped import Network
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.attacks.reconstruction.matching.program import program_of
from leakboard.attacks.reconstruction.regression.residual import residual_of
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.defenses.base import AGGREGATE, Defense, Noise
from leakboard.federation.party import Message
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import VICTIM
from leakboard.federation.task import Task
from leakboard.federation.transcript import Observation

#: images whose gradients are computed at once
CHUNK = 16
#: images, and values of gradients of single records, that pass a defense's hooks in one call: 128 MB
MOST_IMAGES, MOST_VALUES = 128, 2**25
#: relative error up to which a residual is that of one record, and a message is a plain gradient
CONSISTENT, ROUNDING = 1e-2, 1e-4
#: auxiliary images on which messages are compared with plain gradients
COMPARED = 4


class Source(Protocol):
    """Where the gradients of chosen images come from."""

    def gradients(self, images: Tensor, seed: int) -> Parameters:
        """Gradients (N, *shape) of N batches (N, M, C, H, W) with the victim's labels; noise is drawn from the seed."""
        ...


@dataclass(frozen=True)
class KnownResidual:
    """Gradients of r . logits for the victim's own residual r (classes,), one image each.

    At batch 1 the victim's gradient is that of r . logits too, so neither its label nor the confidence of the network
    confounds the regression.
    """

    task: Task
    model: Parameters
    residual: Tensor

    def gradients(self, images: Tensor, seed: int = 0) -> Parameters:
        """Gradients (N, *shape) of images (N, 1, C, H, W)."""
        names, weight = self.task.parameter_names, self.residual.float()
        if program_of(self.task.skeleton(), self.task.public.shape) is not None:
            network = Network(self.task, self.model, len(images), 1)
            return dict(zip(names, network.slopes(images, lambda out: (out * weight).sum()), strict=True))

        def projected(parameters: Parameters, image: Tensor) -> Tensor:
            return (self.task.logits(parameters, image) * weight).sum()

        found: Parameters = vmap(grad(projected), in_dims=(None, 0))({n: self.model[n] for n in names}, images)
        return found


@dataclass(frozen=True)
class Plain:
    """Gradients of the loss without a defense, for labels of the attacker's choice."""

    task: Task
    model: Parameters

    def gradients(self, images: Tensor, labels: Tensor) -> Parameters:
        """Gradients (N, *shape) of batches (N, M, C, H, W) with labels (N, M)."""
        names = self.task.parameter_names
        if program_of(self.task.skeleton(), self.task.public.shape) is not None:
            targets = torch.nn.functional.one_hot(labels, self.task.public.classes).float()
            network = Network(self.task, self.model, *images.shape[:2])
            return dict(zip(names, network.gradients(images, targets), strict=True))
        rows = [self.task.gradient(self.model, x, y)[0] for x, y in zip(images, labels, strict=True)]
        return {name: torch.stack([row[name] for row in rows]) for name in names}


class Imitated:
    """What the defense makes of images, by its own code: `simulate` and `read`, else its hooks.

    - If the view holds the victim's own message, a simulated message takes its place, and the defense reads it.
    - Of a mean over clients, of a view without that message, or where a simulation lacks something
      (`simulates_exactly`), the gradients are computed, changed by `mimic_records` and `mimic`, averaged, and get noise
      as `noise_scale` states it. The same holds for a user's own network, which no client can build by its name
      (`Knowledge.can_simulate`). There a defense that changes updates and has none of these hooks is refused.
    """

    def __init__(self, knowledge: Knowledge, problem: Inversion, labels: Tensor) -> None:
        if not knowledge.can_simulate and _says_nothing(knowledge.defense):
            raise Unsupported(
                "the defense changes updates, and no hook says how (mimic, mimic_records, noise_scale); only a "
                "federation could simulate it"
            )
        self.knowledge, self.problem, self.labels = knowledge, problem, labels
        self.observation = _observation_of(knowledge, problem)
        self.received = _received(self.observation)
        #: whether messages are simulated; otherwise the hooks stand for the defense
        self.by_message = self._reads_its_own_message()

    def gradients(self, images: Tensor, seed: int, labels: Tensor | None = None) -> Parameters:
        """Gradients (N, *shape) of batches (N, M, C, H, W), with labels (N, M) or those of the victim."""
        labels = self.labels.expand(len(images), -1) if labels is None else labels
        if not self.by_message:
            return {n: v.float() for n, v in self._noisy(self._by_hooks(images, labels), seed).items()}
        pairs = enumerate(zip(images, labels, strict=True))
        rows = [self._simulated(batch, own, derive_seed(seed, i)) for i, (batch, own) in pairs]
        return {name: torch.stack([row[name].float() for row in rows]) for name in self.knowledge.task.parameter_names}

    def _simulated(self, images: Tensor, labels: Tensor, seed: int) -> Parameters:
        """What is read of one simulated message."""
        assert self.received is not None
        defense, public = self.knowledge.defense, self.knowledge.public
        found = self._read(defense.simulate(public, self.received, images, labels, seed))
        assert found is not None
        return found

    def _reads_its_own_message(self) -> bool:
        """Whether the victim's real message, put where simulated ones will be, is read as the observed gradient."""
        if self.observation is None or self.received is None or self.problem.gradient.clients != 1:
            return False
        if not self.knowledge.can_simulate or not self.knowledge.defense.simulates_exactly():
            return False
        sent = [m.payload for m in self.observation.messages if m.kind == "update" and m.sender == VICTIM]
        try:
            found = self._read(sent[0]) if sent else None
        except Exception:  # a third party's defense may need messages that were left out
            return False
        return found is not None and _alike(found, self.problem.gradient.values)

    def _read(self, payload: dict[str, object]) -> Parameters | None:
        """The victim's gradient if its message had held this; the other clients' updates are left out for speed."""
        assert self.observation is not None
        kept: list[Message] = []
        for message in self.observation.messages:
            if message.kind != "update":
                kept.append(message)
            elif message.sender == VICTIM:
                kept.append(replace(message, payload=payload))
        shown = replace(self.knowledge.view, observations=(replace(self.observation, messages=tuple(kept)),))
        (reading,) = self.knowledge.defense.interpret(shown)
        gradient = reading.gradients.get(VICTIM)
        return None if gradient is None else gradient.values

    def _by_hooks(self, images: Tensor, labels: Tensor) -> Parameters:
        """Gradients (N, *shape) of batches (N, M, C, H, W) with labels (N, M), after the defense's hooks.

        A hook changes N tensors, each by itself. So the records of one client in several batches pass it in one call.
        """
        values = sum(value.numel() for value in self.problem.gradient.values.values())
        several = max(1, min(MOST_IMAGES, MOST_VALUES // values) // images.shape[1])
        pairs = zip(torch.split(images, several), torch.split(labels, several), strict=True)
        made = [self._by_hooks_at_once(*pair) for pair in pairs]
        return {name: torch.cat([part[name] for part in made]) for name in made[0]}

    def _by_hooks_at_once(self, images: Tensor, labels: Tensor) -> Parameters:
        """The same in one call for all N batches."""
        knowledge, observed = self.knowledge, self.problem.gradient
        plain = Plain(knowledge.task, in_single_precision(self.problem.model))
        of_record = knowledge.defense.mimic_records(observed, knowledge.public)
        of_update = knowledge.defense.mimic(observed, knowledge.public)
        parts = 1 if of_record is None and of_update is None else observed.clients
        updates = []
        for own, theirs in zip(images.chunk(parts, dim=1), labels.chunk(parts, dim=1), strict=True):
            if of_record is None:
                update = plain.gradients(own, theirs)
            else:
                rows = of_record(plain.gradients(own.flatten(0, 1)[:, None], theirs.flatten()[:, None]))
                update = {n: v.view(*own.shape[:2], *v.shape[1:]).mean(1) for n, v in rows.items()}
            updates.append(update if of_update is None else of_update(update))
        return {n: torch.stack([update[n] for update in updates]).mean(0) for n in knowledge.task.parameter_names}

    @cached_property
    def _law(self) -> Noise | None:
        """The law of the noise on the gradient, where the defense states one."""
        if self.observation is None:
            return None
        laws = self.knowledge.defense.noise_scale(self.observation, self.knowledge.public)
        return laws.get(VICTIM if self.problem.gradient.clients == 1 else AGGREGATE)

    def _noisy(self, gradients: Parameters, seed: int) -> Parameters:
        """Gradients (N, *shape) with noise of that law."""
        law = self._law
        if law is None:
            return gradients
        random, found = torch.Generator().manual_seed(seed), {}
        for name, value in gradients.items():
            noise = law.deviation[name] * torch.randn(value.shape, generator=random)
            if law.bound is not None:
                noise = law.bound[name] * (2 * torch.rand(value.shape, generator=random) - 1)
            found[name] = value + noise.to(value)
        return found


def source_of(knowledge: Knowledge, problem: Inversion) -> Source:
    """The best source for a problem: the known residual where plain gradients of one record are sent."""
    task, gradient = knowledge.task, problem.gradient
    labels = labels_of(knowledge, problem)
    imitated = Imitated(knowledge, problem, labels)
    if gradient.records > 1 or task.buffer_names:
        return imitated
    residual, error = residual_of(task, problem.model, gradient.values)
    if error > CONSISTENT or not bool(residual.isfinite().all()):
        return imitated
    if not sends_plain(imitated):
        return imitated
    return KnownResidual(task, in_single_precision(problem.model), residual)


def sends_plain(imitated: Imitated) -> bool:
    """Whether what is sent of some auxiliary images is the mean gradient of the loss and nothing else."""
    knowledge, model, labels = imitated.knowledge, imitated.problem.model, imitated.labels
    for index in range(COMPARED):
        images = knowledge.auxiliary.images[index : index + len(labels)]
        if len(images) < len(labels):
            return False
        plain = knowledge.task.gradient(model, images, labels)[0]
        if not _alike({n: v[0] for n, v in imitated.gradients(images[None], index).items()}, plain):
            return False
    return True


def message_of(knowledge: Knowledge, problem: Inversion) -> tuple[dict[str, object], dict[str, object]] | None:
    """What the victim got and what it sent for a problem; None without both, or where nothing can be simulated."""
    if not knowledge.can_simulate:
        return None
    observation = _observation_of(knowledge, problem)
    received = _received(observation)
    sent = [m.payload for m in observation.messages if m.kind == "update" and m.sender == VICTIM] if observation else []
    return (received, sent[0]) if received is not None and sent else None


def in_single_precision(model: Parameters) -> Parameters:
    """A model in float32; whole numbers, such as an index table among the buffers, stay."""
    return {name: value.float() if value.is_floating_point() else value for name, value in model.items()}


def _says_nothing(defense: Defense) -> bool:
    """Whether a defense changes updates and has no hook that says how."""
    own = type(defense)
    plain = own.protect is Defense.protect and own.update is Defense.update
    silent = own.mimic is Defense.mimic and own.mimic_records is Defense.mimic_records
    return not plain and silent and own.noise_scale is Defense.noise_scale


def _observation_of(knowledge: Knowledge, problem: Inversion) -> Observation | None:
    """The observation whose reading a problem is; None where the view has none."""
    for observation, reading in zip(knowledge.view.observations, knowledge.readings(), strict=True):
        gradient = reading.gradients.get(VICTIM) or reading.gradients.get(AGGREGATE)
        if (
            gradient is not None
            and reading.context.kind == "probe"
            and _equal(gradient.values, problem.gradient.values)
        ):
            return observation
    return None


def _received(observation: Observation | None) -> dict[str, object] | None:
    """The content of the model message that the victim got."""
    messages = observation.messages if observation is not None else ()
    return next((m.payload for m in messages if m.kind == "model" and m.receiver == VICTIM), None)


def _equal(one: Parameters, two: Parameters) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def _alike(one: Parameters, two: Parameters) -> bool:
    """Whether two gradients are the same but for rounding."""
    away = sum(float((one[name].double() - two[name].double()).square().sum()) for name in two)
    size = sum(float(value.double().square().sum()) for value in two.values())
    return away <= ROUNDING**2 * size
