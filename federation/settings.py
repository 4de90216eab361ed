"""The settings of a federation, and what of them is public."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from core.errors import UserError
from core.plugins import Settings

SERVER = "server"
#: the client whose records the attacks are after (protocol: "Victim: client 0")
VICTIM = "client:0"
Moment = Literal["first", "middle", "last"]


def client_name(index: int) -> str:
    """The party name of client number `index`.

    >>> client_name(3)
    'client:3'
    """
    return f"client:{index}"


class Dropout(Settings):
    """A client that vanishes in mid-round: from this step of this round on it does nothing till the round ends."""

    client: int = Field(ge=0)
    round: int = Field(ge=0)
    step: str = Field(description="name of the first step that the client does not run")


class Training(Settings):
    """FedSGD: every round K of N clients send one gradient each, the server takes one step."""

    loss: Literal["mse", "ce"] = Field("mse", description="mse: half squared error on one-hot; ce: cross-entropy")
    rounds: int | None = Field(None, ge=1, le=1_000_000, description="number of rounds; or give epochs")
    epochs: int | None = Field(None, ge=1, le=100_000, description="passes over a client's shard; or give rounds")
    batch_size: int = Field(32, ge=1, description="records a client takes a round")
    clients: int = Field(5, ge=1, le=100_000, description="N, how many clients there are")
    participants: int | None = Field(None, ge=1, description="K, how many take part in a round; default: all")
    learning_rate: float = Field(0.1, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1, description="at the server")
    weight_decay: float = Field(0.0, ge=0, description="at the server")
    precision: Literal["float32", "float64"] = Field("float32", description="float64 is for tests of exactness")
    partition: Literal["iid", "dirichlet"] = "iid"
    alpha: float = Field(0.5, gt=0, description="concentration of the Dirichlet partition")
    dropouts: tuple[Dropout, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("give either rounds or epochs")
        if self.participants is not None and self.participants > self.clients:
            raise ValueError(f"participants ({self.participants}) must be at most clients ({self.clients})")
        for drop in self.dropouts:
            if drop.client >= self.clients:
                raise ValueError(f"dropouts: there is no client {drop.client} among {self.clients} (from 0)")
        return self

    @property
    def per_round(self) -> int:
        """K: how many clients take part in a round."""
        return self.participants or self.clients

    def total_rounds(self, largest_shard: int) -> int:
        """Number of rounds; an epoch is floor(largest shard / batch) rounds: batches are whole, the rest sits out."""
        if self.rounds is not None:
            return self.rounds
        assert self.epochs is not None
        return self.epochs * max(1, largest_shard // self.batch_size)

    def check_shards(self, sizes: list[int]) -> None:
        """Refuse a batch that is larger than the smallest shard."""
        smallest = min(range(len(sizes)), key=sizes.__getitem__)
        if self.batch_size > sizes[smallest]:
            raise UserError(
                f"batch_size {self.batch_size} is larger than the shard of client {smallest}: "
                f"at most {sizes[smallest]} is possible with {self.clients} clients."
            )


class Watch(Settings):
    """What is observed: in which rounds, with how many probe records, of how many targets."""

    rounds: tuple[Moment, ...] = Field(("first", "middle", "last"), description="none: nothing is probed or kept")
    probe_batch: int = Field(1, ge=1, description="records a probe")
    targets: int = Field(8, ge=1, description="how many records of the victim are attacked")
    witnesses: int | None = Field(
        None, ge=2, description="of how many clients messages are kept, the victim's first; default: of all"
    )

    @model_validator(mode="after")
    def _whole_probes(self) -> Self:
        if self.targets % self.probe_batch:
            raise ValueError(f"targets ({self.targets}) must be a multiple of probe_batch ({self.probe_batch})")
        return self

    @model_serializer(mode="wrap")
    def _unless_all(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Records from before there were witnesses say nothing of them: neither do those where all are kept."""
        found: dict[str, Any] = handler(self)
        return {name: value for name, value in found.items() if name != "witnesses" or value is not None}

    def check_threat(self, threat: str) -> None:
        """Refuse collusion where messages are missing: what colluders take out of a sum needs all of them."""
        if self.witnesses is not None and threat.startswith("server+clients"):
            raise UserError(
                f"The threat '{threat}' needs the messages of all clients: observe.witnesses must not be given; "
                f"given: {self.witnesses}."
            )

    def check_targets(self, shard: int) -> None:
        """Refuse more targets than the victim has records; where nothing is observed there are none."""
        if self.rounds and self.targets > shard:
            raise UserError(f"targets ({self.targets}) must be at most the victim's records; given: {shard}.")

    def indices(self, total: int) -> dict[int, Moment]:
        """Which round numbers are observed, and under which name; a short run may fold several into one."""
        where: dict[Moment, int] = {"first": 0, "middle": total // 2, "last": total - 1}
        found: dict[int, Moment] = {}
        for moment in self.rounds:
            found.setdefault(where[moment], moment)
        return found


class Public(Settings):
    """All that everybody knows: the code's names and parameters, shapes, schedule. No seed, no data, no key."""

    defense: str
    parameters: dict[str, Any]
    model: str
    model_parameters: dict[str, Any]
    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    training: Training
    total_rounds: int
    shard_sizes: tuple[int, ...]

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of all clients."""
        return tuple(client_name(index) for index in range(self.training.clients))
