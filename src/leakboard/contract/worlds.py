"""Small federations in which plugins are tried: digits, three clients, a small network, everything recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from leakboard.contract.checking import Broken, NotApplicable
from leakboard.core import registry
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import ImagePool, LabelledImages
from leakboard.datasets.digits import Digits
from leakboard.datasets.loading import load_pool
from leakboard.defenses.base import Defense, Reading
from leakboard.defenses.building_blocks.encrypted import Encrypted
from leakboard.federation.outcome import Outcome
from leakboard.federation.payload import leaves, raw_bytes
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public, Training, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import View, make_view, parse_threat

#: the threats under which views are looked at
THREATS = ("server", "server+keys", "server+clients:1", "server+clients:2", "client")


@dataclass(frozen=True, eq=False)
class World:
    """A finished federation with all its secrets, and records that nobody trained on. It is equal to itself alone."""

    defense: Defense
    outcome: Outcome
    shards: dict[str, LabelledImages]
    observe: ObservedRounds
    seed: int
    auxiliary: LabelledImages
    unseen: LabelledImages

    def view(self, threat: str) -> View:
        """What the parties of a threat hold."""
        return make_view(
            self.outcome.transcript,
            parse_threat(threat, len(self.shards)),
            self.outcome.public,
            self.outcome.secrets,
            self.shards,
        )

    def readings(self, threat: str) -> tuple[Reading, ...]:
        """The honest reading of that view. The last ones are kept: some schemes decrypt every update for one."""
        return _readings(self, threat)


@lru_cache(maxsize=4)
def _readings(world: World, threat: str) -> tuple[Reading, ...]:
    return world.defense.interpret(world.view(threat))


def digits(label_noise: float = 0.0) -> ImagePool:
    """The data that comes with scikit-learn."""
    return load_pool(Digits(label_noise=label_noise))


class Sizes(TypedDict, total=False):
    """The settings of `make_public`."""

    model: str
    model_parameters: dict[str, object] | None
    clients: int
    shard: int
    rounds: int
    batch_size: int
    learning_rate: float


def make_public(
    defense: Defense,
    pool: ImagePool,
    *,
    model: str = "mlp",
    model_parameters: dict[str, object] | None = None,
    clients: int = 3,
    shard: int = 12,
    rounds: int = 3,
    batch_size: int = 4,
    learning_rate: float = 0.02,
) -> Public:
    """The public settings of a small federation on digits."""
    given = dict(model_parameters or ({"hidden": [16]} if model == "mlp" else {}))
    return Public(
        defense=defense.name,
        parameters=defense.parameters(),
        model=model,
        model_parameters=registry.create("model", model, given).parameters(),
        shape=pool.shape,
        classes=pool.classes,
        mean=Digits.mean,
        std=Digits.std,
        training=Training(rounds=rounds, batch_size=batch_size, clients=clients, learning_rate=learning_rate),
        total_rounds=rounds,
        shard_sizes=(shard,) * clients,
    )


def make_world(
    defense: Defense,
    *,
    targets: int = 2,
    seed: int = 0,
    label_noise: float = 0.0,
    auxiliary: int = 40,
    unseen: int = 40,
    record_all: bool = False,
    canaries: dict[str, Tensor] | None = None,
    **settings: Unpack[Sizes],
) -> World:
    """Deal digits to clients, train, and keep everything. `canaries` are planted in the parties' states and keys.

    The other settings are those of `make_public`.
    """
    pool = digits(label_noise)
    public = make_public(defense, pool, **settings)
    sizes = [*public.shard_sizes, auxiliary, unseen]
    order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(derive_seed("world", seed)))
    *dealt, others, new, _ = torch.split(order, [*sizes, len(order) - sum(sizes)])
    shards = {client_name(i): pool.take(part) for i, part in enumerate(dealt)}
    observe = ObservedRounds(rounds=("first", "last"), targets=targets)
    federation = Federation(defense, public, shards, observe, seed, record_all=record_all)
    for party, value in (canaries or {}).items():
        if party in federation.parties:
            federation.parties[party].state["canary"] = value
    outcome = federation.run()
    return World(defense, outcome, shards, observe, seed, pool.take(others), pool.take(new))


def network_for(defense: Defense) -> dict[str, object]:
    """The network of a rule's federation: 8 hidden units, or 2 where every single value is really encrypted."""
    return {"hidden": [2 if really_encrypts(defense) else 8]}


def really_encrypts(defense: Defense) -> bool:
    """Whether a defense encrypts all its values, which takes minutes, instead of a sample of them."""
    return isinstance(defense, Encrypted) and defense.crypto == "real"


#: finished worlds by defense and settings, the newest last; or why there is none
_kept: dict[tuple[object, ...], World | str] = {}
MOST_KEPT = 8


def world_of(defense: Defense, **settings: Any) -> World:
    """`make_world` with the network of `network_for`; the last few worlds are kept, as many rules look at one.

    Where the federation does not run, one rule says so (`check_a_federation_runs`) and the others do not apply.
    """
    key = (type(defense), json.dumps(defense.parameters(), sort_keys=True), repr(sorted(settings.items())))
    if key not in _kept:
        while len(_kept) >= MOST_KEPT:
            del _kept[next(iter(_kept))]
        try:
            _kept[key] = make_world(defense, model_parameters=network_for(defense), **settings)
        except Exception as error:
            _kept[key] = _why(defense, error)
    found = _kept[key]
    if isinstance(found, str):
        raise NoWorld(found)
    return found


class NoWorld(NotApplicable):
    """No federation runs under this defense; `why` says so in a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__("no federation runs under this defense (see above).")
        self.why = why


def _why(defense: Defense, error: Exception) -> str:
    """Why a federation does not run: what `protect` returns has another form, or else the error itself."""
    try:
        _check_protected(defense)
    except Broken as wrong:
        return str(wrong)
    except Exception:  # a defense with messages of its own form: the first error says more
        pass
    return f"A round ends with {type(error).__name__}: {error}."


def _check_protected(defense: Defense) -> None:
    """Whether a client's message holds a gradient in the names and shapes of the network."""
    public = make_public(defense, digits(), model_parameters=network_for(defense))
    model, task = task_of(public).initial(0), task_of(public)
    images = digits().take(torch.arange(2))
    sent = defense.simulate(public, {"model": model}, images.images, images.labels, 0)["gradient"]
    for name in task.parameter_names:
        if name not in sent:
            raise Broken(
                f"`protect` must return a gradient for '{name}'; given: {', '.join(map(str, sent)) or 'none'}."
            )
        if sent[name].shape != model[name].shape:
            wanted, given = tuple(model[name].shape), tuple(sent[name].shape)
            raise Broken(f"`protect` must return '{name}' in the shape of the gradient, {wanted}; given: {given}.")


def blobs(view: View, *, messages_only: bool = False) -> Iterator[bytes]:
    """Every tensor and byte string that a view holds; or only those that reached its parties in messages."""
    for observation in view.observations:
        for message in observation.messages:
            if not messages_only or message.receiver in view.parties:
                yield from _bytes_of(message.payload)
        if not messages_only:
            yield from _bytes_of(dict(observation.states))
            yield from _bytes_of(dict(observation.keys))
    if not messages_only:
        yield from view.secrets.values()
        for held in view.holdings.values():
            yield raw_bytes(held.images)
        yield view.public.model_dump_json().encode()


def _bytes_of(value: object) -> Iterator[bytes]:
    for _, leaf in leaves(value):
        if isinstance(leaf, Tensor):
            yield raw_bytes(leaf)
        elif isinstance(leaf, bytes):
            yield leaf


def holds(view: View, canary: bytes, *, messages_only: bool = False) -> bool:
    """Whether a view holds these bytes anywhere; or only in what reached its parties in messages."""
    return any(canary in blob for blob in blobs(view, messages_only=messages_only))
