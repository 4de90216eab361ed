"""What else a user gives to `lb.attack`: the attack, the defense, records, and the training that the update is of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from leakboard.attacks.base import Attack, KnownMembership, MembershipAttack, ReconstructionAttack
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.given_network import (
    GivenTask,
    buffers_of,
    classes_of,
    copied,
    parameters_of,
    refuse_randomness,
)
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.leaderboard.api.checks import device_name
from leakboard.leaderboard.api.foreign import (
    GivenKnowledge,
    Records,
    check_records,
    loss_of,
    normalisation_of,
    public_of,
    records_of,
    view_of,
)
from leakboard.leaderboard.api.given_update import GivenUpdate, load_weights

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class GivenRecords:
    """Records that the attacker has or asks about, and the shape (C, H, W) of an image."""

    auxiliary: LabelledImages | None
    candidates: LabelledImages | None
    known: KnownMembership | None
    shape: Shape

    @classmethod
    def of(cls, auxiliary: Records | None, candidates: Records | None, known: object, shape: object) -> GivenRecords:
        """Check what was given; the shape may follow from the images."""
        extra = None if auxiliary is None else records_of(auxiliary, "`auxiliary`")
        asked = None if candidates is None else records_of(candidates, "`candidates`")
        size = _shape_of(shape, extra, asked)
        return cls(extra, asked, _known_of(known), size)

    def check(self, classes: int) -> None:
        """Refuse images of another shape, and labels that the network does not know."""
        told = None if self.known is None else self.known.records
        for part, what in ((self.auxiliary, "`auxiliary`"), (self.candidates, "`candidates`"), (told, "`known`")):
            check_records(part, what, self.shape, classes)


@dataclass(frozen=True)
class Loop:
    """The user's training loop, as it was given: unchecked."""

    loss: str | nn.Module
    records: int | None
    local_steps: int
    local_batches: int
    mean: Any
    std: Any


@dataclass(frozen=True)
class Case:
    """A checked update in our form: the network, its public settings, what was sent and with which statistics."""

    module: nn.Module
    public: Public
    gradients: list[Parameters]
    statistics: list[Parameters]

    @classmethod
    def of(cls, model: nn.Module, update: GivenUpdate, data: GivenRecords, loop: Loop) -> Case:
        """Check the network, the records, the schedule and the tensors against each other."""
        module = copied(model)
        seen = update.seen()
        if seen is not None:
            load_weights(module, seen.model)
        count = _whole(loop.records if loop.records is not None else seen.records if seen is not None else 1)
        refuse_randomness(module)
        classes = classes_of(module, data.shape, count)
        data.check(classes)
        local = update.schedule(loop.local_steps, loop.local_batches, count, seen)
        form, factor = loss_of(loop.loss, classes, count if local is None else count // local.batches)
        gradients, statistics = update.sent(module, factor, seen, local)
        name, rounds, channels = type(model).__name__, max(1, len(gradients)), data.shape[0]
        public = public_of(name, form, data.shape, classes, count, _precision(module), rounds, local, factor)
        mean, std = normalisation_of(loop.mean, 0.0, channels, "mean"), normalisation_of(loop.std, 1.0, channels, "std")
        return cls(module, public.model_copy(update={"mean": mean, "std": std}), gradients, statistics)

    @property
    def state(self) -> Parameters:
        """The weights and buffers that the client got."""
        return {**parameters_of(self.module), **buffers_of(self.module)}

    def knowledge(
        self,
        data: GivenRecords,
        defense: str | Defense | None,
        seed: int,
        device: str,
        time_limit: float | None,
        progress: Callable[[str], None] | None,
    ) -> GivenKnowledge:
        """What the attack gets."""
        empty = LabelledImages(torch.empty(0, *data.shape), torch.empty(0).long())
        return GivenKnowledge(
            view=view_of(self.public, self.state, self.gradients, self.statistics),
            defense=defense_of(defense),
            auxiliary=data.auxiliary if data.auxiliary is not None else empty,
            seed=seed,
            device=device_name(cast(Any, device), "local"),
            deadline=None if time_limit is None else time.monotonic() + time_limit,
            given=GivenTask(self.module, self.public),
            **({} if progress is None else {"progress": progress}),
        )


def attack_of(given: object, params: Mapping[str, Any] | None) -> Attack:
    """The attack, if it answers from what a server sees."""
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".py")):
        names = [entry["name"] for entry in registry.load_file(given) if entry["kind"] == "attack"]
        if len(names) != 1:
            raise UserError(f"{given} must define one attack; given: {', '.join(names) or 'none'}.")
        given = names[0]
    if isinstance(given, str):
        made: object = registry.create("attack", given, dict(params or {}))
    elif isinstance(given, type) and issubclass(given, Attack):
        made = given.parse(params or {}, f"The attack '{given.name}'")
    else:
        made = given
    if not isinstance(made, Attack):
        raise UserError(f"An attack is given by name, file, class or instance; given: {type(given).__name__}.")
    if made is given and params:
        raise UserError(f"`params` belong to an attack given by name or class; '{made.name}' has its own already.")
    if not isinstance(made, ReconstructionAttack | MembershipAttack):
        raise UserError(f"The attack '{made.name}' is about {made.goal}: allowed are reconstruction and membership.")
    if not made.allows("server"):
        raise UserError(
            f"The attack '{made.name}' needs the view of {' or '.join(made.threats)}; an update is what a server sees."
        )
    return made


def defense_of(given: str | Defense | None) -> Defense:
    """The defense, if it sends one gradient per client; without one, none was used."""
    made: object = FedSGD() if given is None else registry.create("defense", given) if isinstance(given, str) else given
    if not isinstance(made, Defense):
        raise UserError(f"`defense` must be the name or an instance of a defense; given: {type(made).__name__}.")
    if type(made).read is not Defense.read or type(made).interpret is not Defense.interpret:
        raise UserError(
            f"The defense '{made.name}' sends no single gradient of a client, so no update stands for its messages: "
            "evaluate it in a federation (lb.evaluate)."
        )
    return made


def _shape_of(given: object, *parts: LabelledImages | None) -> Shape:
    found = [tuple(part.images.shape[1:]) for part in parts if part is not None]
    shape = given if given is not None else found[0] if found else None
    if shape is None:
        raise UserError("The shape of an image is not known: give `shape` as (C, H, W), or `auxiliary` images.")
    good = isinstance(shape, tuple | list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)
    if not good:
        raise UserError(f"`shape` must be (C, H, W), three whole numbers; given: {shape!r:.80}.")
    channels, height, width = cast(Sequence[int], shape)
    return channels, height, width


def check_numbers(seed: object, time_limit: object) -> None:
    """Refuse a seed that is no whole number, and a time limit that is not positive."""
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"`seed` must be a whole number; given: {seed!r:.80}.")
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit > 0):
        raise UserError(f"`time_limit` must be a positive number of seconds; given: {time_limit!r:.80}.")


def _whole(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise UserError(f"`records` must be a whole number of at least 1; given: {given!r:.80}.")
    return given


def _precision(module: nn.Module) -> str:
    return str(next(module.parameters()).dtype).removeprefix("torch.")


def _known_of(given: object) -> KnownMembership | None:
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 3 or not isinstance(given[2], Tensor):
        raise UserError("`known` must be (images, labels, members), three tensors.")
    records, members = records_of(tuple(given[:2]), "`known`"), given[2]
    if members.dtype != torch.bool or members.shape != records.labels.shape or len(set(members.tolist())) < 2:
        raise UserError(f"`known` must tell members (N,) as booleans, some of each; given: {members.dtype}.")
    return KnownMembership(records, members.cpu())
