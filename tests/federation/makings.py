"""Shared makings of the federation tests: tiny images, tiny models, short runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from leakboard.datasets.base import LabelledImages
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import Party, Step
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation, Scheme
from leakboard.federation.settings import ObservedRounds, Public, Training, client_name
from leakboard.federation.transcript import Observation

SHAPE = (1, 8, 8)
CLASSES = 3
MLP = {"hidden": [8]}


def images(count: int, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> LabelledImages:
    """Random images, all different, with random labels."""
    generator = torch.Generator().manual_seed(seed)
    return LabelledImages(
        torch.rand(count, *shape, generator=generator), torch.randint(0, CLASSES, (count,), generator=generator)
    )


def shards_of(sizes: Sequence[int], seed: int = 100, shape: tuple[int, int, int] = SHAPE) -> dict[str, LabelledImages]:
    return {client_name(i): images(size, seed + i, shape) for i, size in enumerate(sizes)}


def public_of(
    sizes: Sequence[int] = (12, 12),
    *,
    model: str = "mlp",
    model_parameters: Mapping[str, Any] | None = None,
    shape: tuple[int, int, int] = SHAPE,
    **training: Any,
) -> Public:
    """Public settings of a small federation; 4 rounds of batches of 4 unless told otherwise."""
    given = {"rounds": 4, "batch_size": 4, **training}
    settings = Training.parse({**given, "clients": len(sizes)}, "training")
    return Public(
        defense="fedsgd",
        parameters={},
        model=model,
        model_parameters=dict(MLP if model_parameters is None else model_parameters),
        shape=shape,
        classes=CLASSES,
        mean=(0.5,) * shape[0],
        std=(0.25,) * shape[0],
        training=settings,
        total_rounds=settings.total_rounds(max(sizes)),
        shard_sizes=tuple(sizes),
    )


def observe_of(*rounds: str, probe_batch: int = 1, targets: int = 2) -> ObservedRounds:
    return ObservedRounds.parse(
        {"rounds": rounds or ("first", "middle", "last"), "probe_batch": probe_batch, "targets": targets}, "observe"
    )


def run(
    public: Public,
    scheme: Scheme | None = None,
    *,
    observe: ObservedRounds | None = None,
    seed: int = 0,
    record_all: bool = False,
    fresh_keys: bool = False,
) -> Outcome:
    """Run a federation on random shards of the sizes that it says."""
    shards = shards_of(public.shard_sizes, shape=public.shape)
    return Federation(
        scheme or FedSGD(), public, shards, observe, seed, record_all=record_all, fresh_keys=fresh_keys
    ).run()


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def flat(parameters: Parameters) -> torch.Tensor:
    return torch.cat([value.double().flatten() for value in parameters.values()])


def rows(data: LabelledImages) -> set[bytes]:
    """The images as values, to be found again wherever they turn up."""
    return {image.numpy().tobytes() for image in data.images}


class Keyed(FedSGD):
    """FedSGD with an authority that gives every client and itself keys; they are used for nothing."""

    def third_parties(self) -> tuple[str, ...]:
        return ("authority",)

    def setup(self) -> Sequence[Step]:
        return (*super().setup(), Step("deal", "authority", self.deal), Step("take", "client", self.take))

    def deal(self, me: Any) -> None:
        me.keys["master"] = me.stream("master").bytes(16)
        for name in me.public.clients:
            me.send(name, "share", {"share": me.stream(name).bytes(16)})

    def take(self, me: Any) -> None:
        me.keys["share"] = me.expect("share", "authority")["share"]
        me.state["note"] = f"private to {me.name}"
        me.state["private"] = me.stream("private").bytes(16)


class Stateful(FedSGD):
    """Clients and server keep state from round to round, and clients add noise of their own."""

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        me.state["rounds"] = me.state.get("rounds", 0) + 1
        me.keys["last"] = bytes([me.state["rounds"]])
        me.state.setdefault("residual", torch.zeros(1)).add_(1)  # in place, as careless code does
        noise = me.stream("noise")
        return {name: g + 0.01 * torch.from_numpy(noise.normal(*g.shape)).float() for name, g in gradient.items()}


def of_kind(outcome: Outcome, kind: str) -> list[Observation]:
    return [o for o in outcome.transcript.observations if o.context.kind == kind]


def sent(observation: Observation, kind: str) -> dict[str, Any]:
    return {m.sender: m.payload for m in observation.messages if m.kind == kind}
