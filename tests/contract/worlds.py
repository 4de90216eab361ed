"""Small federations that the contract tests run plugins in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.core import registry
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import ImagePool, LabelledImages
from leakboard.datasets.digits import Digits
from leakboard.datasets.loading import load_pool
from leakboard.defenses.base import Defense
from leakboard.federation.payload import leaves, raw_bytes
from leakboard.federation.rounds import Federation, Outcome
from leakboard.federation.settings import ObservedRounds, Public, Training, client_name
from leakboard.federation.view import View, make_view, parse_threat

#: `run_benchmark.py check FILE.py` runs these tests on the plugins of that file alone
CHECKED = os.environ.get("LEAKBOARD_CHECK", "")
if CHECKED:  # here, so that the processes that replay a party know it too
    registry.load_file(CHECKED)

THREATS = ("server", "server+keys", "server+clients:1", "server+clients:2", "client")


@dataclass(frozen=True)
class World:
    """A finished federation with all its secrets, and records that nobody trained on."""

    defense: Defense
    outcome: Outcome
    shards: dict[str, LabelledImages]
    observe: ObservedRounds
    seed: int
    auxiliary: LabelledImages
    unseen: LabelledImages

    def view(self, threat: str) -> View:
        return make_view(
            self.outcome.transcript,
            parse_threat(threat, len(self.shards)),
            self.outcome.public,
            self.outcome.secrets,
            self.shards,
        )


def digits(label_noise: float = 0.0) -> ImagePool:
    return load_pool(Digits(label_noise=label_noise))


def make_world(
    defense: Defense,
    *,
    model: str = "mlp",
    model_parameters: dict[str, object] | None = None,
    clients: int = 3,
    shard: int = 12,
    rounds: int = 3,
    batch_size: int = 4,
    learning_rate: float = 0.02,
    targets: int = 2,
    seed: int = 0,
    label_noise: float = 0.0,
    auxiliary: int = 40,
    unseen: int = 40,
    record_all: bool = False,
    canaries: dict[str, Tensor] | None = None,
) -> World:
    """Deal digits to clients, train, and keep everything. `canaries` are planted in the parties' states and keys."""
    pool = digits(label_noise)
    order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(derive_seed("world", seed)))
    parts = torch.split(
        order, [*([shard] * clients), auxiliary, unseen, len(order) - shard * clients - auxiliary - unseen]
    )
    shards = {client_name(i): pool.take(parts[i]) for i in range(clients)}
    public = Public(
        defense=defense.name,
        parameters=defense.parameters(),
        model=model,
        model_parameters=registry.create(
            "model", model, dict(model_parameters or ({"hidden": [16]} if model == "mlp" else {}))
        ).parameters(),
        shape=pool.shape,
        classes=pool.classes,
        mean=Digits.mean,
        std=Digits.std,
        training=Training(rounds=rounds, batch_size=batch_size, clients=clients, learning_rate=learning_rate),
        total_rounds=rounds,
        shard_sizes=(shard,) * clients,
    )
    observe = ObservedRounds(rounds=("first", "last"), targets=targets)
    federation = Federation(defense, public, shards, observe, seed, record_all=record_all)
    for party, value in (canaries or {}).items():
        if party in federation.parties:
            federation.parties[party].state["canary"] = value
    outcome = federation.run()
    return World(defense, outcome, shards, observe, seed, pool.take(parts[clients]), pool.take(parts[clients + 1]))


#: keys that are too small for anything but a contract; real sizes have tests of their own in tests/defenses
SMALL: dict[str, dict[str, object]] = {
    "tp-smc": {"key_bits": 256, "sample_values": 30},
    "pile": {"key_bits": 256, "sample_values": 30},
    "hybridalpha": {"sample_values": 6},
}

#: settings under which a defense takes other steps than by default
VARIANTS: dict[str, list[dict[str, object]]] = {
    "mp-dp": [{"neighbours": 1}, {"variant": "V1", "mode": "corrected"}],
    "tp-smc": [{"crypto": "real"}],
    "pile": [{"crypto": "real", "variant": "V1"}],
    "hybridalpha": [{"keys": "shared"}],
}


def plugins(kind: str) -> dict[str, registry.Entry]:
    """The plugins under test: all of a kind, or those of the file that `check` was given."""
    found = registry.entries(kind)
    if not CHECKED:
        return found
    mine = {entry["name"] for entry in registry.load_file(CHECKED) if entry["kind"] == kind}
    return {name: entry for name, entry in found.items() if name in mine}


def defense_names() -> list[str]:
    return list(plugins("defense"))


def defenses() -> list[Defense]:
    """Every defense with its default parameters (but small keys), and the variants above."""
    found = []
    for name in defense_names():
        for parameters in [{}, *VARIANTS.get(name, [])]:
            made = registry.create("defense", name, {**SMALL.get(name, {}), **parameters})
            assert isinstance(made, Defense)
            found.append(made)
    return found


def title(defense: Defense) -> str:
    return f"{defense.name}-{'-'.join(map(str, defense.model_dump(exclude_defaults=True).values()))}".rstrip("-")


def attack_names(goal: str) -> list[str]:
    return [name for name, entry in plugins("attack").items() if entry["goal"] == goal]


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
    return any(canary in blob for blob in blobs(view, messages_only=messages_only))
