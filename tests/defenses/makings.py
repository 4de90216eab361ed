"""Small federations and perturbed networks that the tests of model perturbation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakboard.core import registry
from leakboard.core.randomness import Stream, derive_key
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.datasets.digits import Digits
from leakboard.datasets.loading import load_pool
from leakboard.defenses.base import Defense
from leakboard.defenses.perturbation.client import Expanded
from leakboard.defenses.perturbation.server import Secret, draw_secret, perturb
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public, Training, client_name
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View, make_view, parse_threat


def key(*names: str | int) -> Stream:
    """A stream under a fixed key."""
    return Stream(derive_key(bytes(32), "tests of defenses", *names))


def images_of(*shape: int, seed: int = 0) -> Tensor:
    """Pictures (float64) that no test depends on in detail."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def create(name: str, **parameters: Any) -> Defense:
    made = registry.create("defense", name, parameters)
    assert isinstance(made, Defense)
    return made


# --- a network by itself --------------------------------------------------------------------


def public_of(
    model: str = "mlp",
    parameters: Mapping[str, Any] | None = None,
    *,
    shape: tuple[int, int, int] = (1, 8, 8),
    classes: int = 4,
    defense: Defense | None = None,
    shard: int = 32,
    **training: Any,
) -> Public:
    """Public settings for a network and a schedule; nobody runs."""
    settings = Training.model_validate({"rounds": 2, "batch_size": 4, "clients": 3, **training})
    return Public(
        defense=defense.name if defense else "fedsgd",
        parameters=defense.parameters() if defense else {},
        model=model,
        model_parameters=registry.create("model", model, dict(parameters or {})).parameters(),
        shape=shape,
        classes=classes,
        mean=(0.3,) * shape[0],
        std=(0.5,) * shape[0],
        training=settings,
        total_rounds=settings.total_rounds(shard),
        shard_sizes=(shard,) * settings.clients,
    )


def weights_of(network: nn.Module, seed: int = 0) -> Parameters:
    """Random weights in float64, of the size that torch draws."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in network.named_parameters():
        spread = 1.5 / max(1.0, value[0].numel()) ** 0.5 if value.ndim > 1 else 0.3
        found[name] = spread * torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return found


def secret_for(expanded: Expanded, variant: str, classes: int = 4, scale: float = 1.0, seed: int = 0) -> Secret:
    return draw_secret(
        key("secret", seed),
        expanded.wiring,
        classes,
        transitional=expanded.transitional,
        variant=variant,
        scale=scale,
    )


def hidden_of(model: Parameters, expanded: Expanded, secret: Secret) -> Parameters:
    return perturb(model, expanded.wiring, secret, transitional=expanded.transitional, dtype=torch.float64)


# --- a federation ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A finished federation, with every message of every round."""

    defense: Defense
    outcome: Outcome
    shards: dict[str, LabelledImages]
    observe: ObservedRounds | None

    @property
    def public(self) -> Public:
        return self.outcome.public

    def view(self, threat: str) -> View:
        who = parse_threat(threat, len(self.shards))
        return make_view(self.outcome.transcript, who, self.public, self.outcome.secrets, self.shards)

    def rounds(self, kind: str = "train") -> list[Observation]:
        return [o for o in self.outcome.transcript.observations if o.context.kind == kind]

    def batch(self, context: RoundContext, client: int) -> LabelledImages:
        """The records that a client used in a probe."""
        assert context.probe is not None
        size = context.batch_size
        shard = self.shards[client_name(client)]
        return shard.select(torch.arange(context.probe * size, (context.probe + 1) * size) % len(shard))


def run(
    defense: Defense,
    *,
    model: str = "mlp",
    model_parameters: Mapping[str, Any] | None = None,
    shard: int = 16,
    seed: int = 0,
    observe: ObservedRounds | None = None,
    record_all: bool = True,
    **training: Any,
) -> Run:
    """Deal digits to clients and train. Training: 3 clients, 2 rounds, batches of 4, unless told otherwise."""
    settings = Training.model_validate(
        {"rounds": 2, "batch_size": 4, "clients": 3, "learning_rate": 0.02, **training},
    )
    pool = load_pool(Digits())
    order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(derive_seed("run", seed)))
    shards = {client_name(i): pool.take(order[i * shard : (i + 1) * shard]) for i in range(settings.clients)}
    public = Public(
        defense=defense.name,
        parameters=defense.parameters(),
        model=model,
        model_parameters=registry.create(
            "model", model, dict(model_parameters or ({"hidden": [8]} if model == "mlp" else {}))
        ).parameters(),
        shape=pool.shape,
        classes=pool.classes,
        mean=Digits.mean,
        std=Digits.std,
        training=settings,
        total_rounds=settings.total_rounds(shard),
        shard_sizes=(shard,) * settings.clients,
    )
    federation = Federation(defense, public, shards, observe, seed, record_all=record_all)
    return Run(defense, federation.run(), shards, observe)


def flat(values: Parameters) -> Tensor:
    """All values as one float64 vector, in the order of the names."""
    return torch.cat([values[name].double().flatten() for name in values])


def updates(observation: Observation) -> dict[str, Payload]:
    return {m.sender: m.payload for m in observation.messages if m.kind == "update"}


def relative(found: Tensor, true: Tensor) -> float:
    """||found - true|| / ||true||."""
    return float((found.double() - true.double()).detach().norm() / true.double().detach().norm())


def true_gradient(run: Run, model: Parameters, batch: LabelledImages) -> Parameters:
    exact = {name: value.double() for name, value in model.items()}
    return task_of(run.public).gradient(exact, batch.images, batch.labels)[0]
