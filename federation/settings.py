"""The settings of a federation, and which of them are public."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from leakboard.core.errors import UserError
from leakboard.core.plugins import Settings

SERVER = "server"
#: the client whose records the attacks target (protocol: "Victim: client 0")
VICTIM = "client:0"
Moment = Literal["first", "middle", "last"]
#: with several batch sizes, at least this many batches of each: halves of fewer are not meaningful
FEWEST_BATCHES = 8


def client_name(index: int) -> str:
    """The party name of client number `index`.

    >>> client_name(3)
    'client:3'
    """
    return f"client:{index}"


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


class Dropout(Settings):
    """A client that drops out in mid-round: from this step on it does nothing until the round ends."""

    client: int = Field(ge=0)
    round: int = Field(ge=0)
    step: str = Field(description="name of the first step that the client does not run")


#: settings that older records do not have; they are stored only where clients take local steps
LOCAL = ("local_steps", "local_batches", "local_learning_rate")
#: the same for rates of missing clients, which are stored only where they are not 0
RATES = ("dropout", "late")


class Training(Settings):
    """FedSGD: in every round K of N clients send one gradient each, and the server takes one step.

    With a `local_learning_rate` it is FedAvg (McMahan et al. 2017): each client takes `local_steps` steps of SGD on its
    records of the round and sends the update w_t - w_(t+1). The server steps along the mean update with its own
    learning rate and momentum; rate 1 and momentum 0 take the average of the clients' models.
    """

    loss: Literal["mse", "ce"] = Field("mse", description="mse: half squared error on one-hot; ce: cross-entropy")
    rounds: int | None = Field(None, ge=1, le=1_000_000, description="number of rounds; or give epochs")
    epochs: int | None = Field(None, ge=1, le=100_000, description="passes over a client's shard; or give rounds")
    batch_size: int = Field(32, ge=1, description="records per client and round")
    clients: int = Field(5, ge=1, le=100_000, description="N, the number of clients")
    participants: int | None = Field(None, ge=1, description="K, the number of clients per round; default: all")
    learning_rate: float = Field(0.1, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1, description="at the server")
    weight_decay: float = Field(0.0, ge=0, description="at the server")
    precision: Literal["float32", "float64"] = Field("float32", description="float64 is for tests of exactness")
    partition: Literal["iid", "dirichlet"] = "iid"
    alpha: float = Field(0.5, gt=0, description="concentration of the Dirichlet partition")
    dropouts: tuple[Dropout, ...] = ()
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of clients that drop out of a round before they send their update"
    )
    late: float = Field(
        0.0, ge=0, lt=1, description="share of clients whose update arrives after the server has closed the round"
    )
    local_steps: int = Field(1, ge=1, le=10_000, description="steps of SGD that a client takes in a round")
    local_batches: int = Field(
        1,
        ge=1,
        description="a client's records of a round are cut into this many batches; step k takes batch k, in turn",
    )
    local_learning_rate: float | None = Field(
        None, gt=0, description="of the local steps, whose update is then sent; null: clients send one gradient"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("give either rounds or epochs")
        if self.local_learning_rate is None and (self.local_steps > 1 or self.local_batches > 1):
            raise ValueError("local_steps and local_batches need a local_learning_rate")
        if self.local_batches > min(self.batch_size, self.local_steps):
            raise ValueError(
                f"local_batches ({self.local_batches}) must be at most local_steps ({self.local_steps}) and "
                f"batch_size ({self.batch_size}): every record is trained on"
            )
        if self.participants is not None and self.participants > self.clients:
            raise ValueError(f"participants ({self.participants}) must be at most clients ({self.clients})")
        if self.dropout + self.late >= 1:
            raise ValueError(f"dropout ({self.dropout:g}) and late ({self.late:g}) together must be less than 1")
        for drop in self.dropouts:
            if drop.client >= self.clients:
                raise ValueError(f"dropouts: there is no client {drop.client} among {self.clients} (from 0)")
        return self

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The form of older records where clients take no local steps and are missing at no rate."""
        found: dict[str, Any] = handler(self)
        unused = {*(() if self.is_local else LOCAL), *(name for name in RATES if not found[name])}
        return {name: value for name, value in found.items() if name not in unused}

    @property
    def misses_at_random(self) -> bool:
        """Whether clients are missing at a rate, so that nobody knows beforehand who and how many."""
        return self.dropout + self.late > 0

    def may_miss(self, index: int) -> bool:
        """Whether a client may be missing in that round."""
        return self.misses_at_random or any(drop.round == index for drop in self.dropouts)

    @property
    def is_local(self) -> bool:
        """Whether clients take local steps and send an update, not a gradient."""
        return self.local_learning_rate is not None

    @property
    def update_scale(self) -> float:
        """How long an update is in units of the mean gradient along its way: steps times rate; 1 for a gradient."""
        return self.local_steps * self.local_learning_rate if self.local_learning_rate is not None else 1.0

    def local_schedule(self, records: int) -> tuple[slice, ...]:
        """Which of a client's records each local step trains on; public. All of them where there is one gradient.

        The records are cut in their order into batches of nearly equal size, the same in every pass over them. There
        are never more batches than records.

        >>> Training(rounds=1, local_steps=3, local_batches=2, local_learning_rate=0.1).local_schedule(5)
        (slice(0, 2, None), slice(2, 5, None), slice(0, 2, None))
        """
        count = min(self.local_batches, records)
        edges = [records * i // count for i in range(count + 1)]
        return tuple(slice(edges[k % count], edges[k % count + 1]) for k in range(self.local_steps))

    @property
    def per_round(self) -> int:
        """K: how many clients take part in a round."""
        return self.participants or self.clients

    def total_rounds(self, largest_shard: int) -> int:
        """Number of rounds; an epoch has floor(largest shard / batch) rounds: batches are whole, the rest is unused."""
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


class ObservedRounds(Settings):
    """What is observed: in which rounds, with probes of which batch sizes, and how many of each."""

    rounds: tuple[Moment, ...] = Field(("first", "middle", "last"), description="empty: nothing is probed or stored")
    probe_batch: int | tuple[int, ...] = Field(
        1, description="records per probe; with a list, probes of each of these sizes"
    )
    targets: int = Field(8, ge=1, description="how many probes of each batch size: batches of the victim's records")
    witnesses: int | None = Field(
        None, ge=2, description="store the messages of this many clients, the victim's first; default: all"
    )

    @field_validator("probe_batch", mode="before")
    @classmethod
    def _distinct_sizes(cls, given: Any) -> Any:
        sizes = given if isinstance(given, list | tuple) else [given]
        whole = all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes)
        if not sizes or not whole or len(set(sizes)) < len(sizes):
            raise ValueError("it must be a whole number of at least 1, or a list of different ones")
        return given

    @model_validator(mode="after")
    def _enough_batches(self) -> Self:
        if len(self.sizes) > 1 and self.targets < FEWEST_BATCHES:
            raise ValueError(
                f"with several batch sizes targets must be at least {FEWEST_BATCHES}, which is the number of batches "
                f"of each size; given: {self.targets}"
            )
        return self

    @classmethod
    def of_record(cls, observe: Mapping[str, Any]) -> Self:
        """The observed rounds from a record or a job, as `model_dump` wrote them."""
        return cls.model_validate(cls.in_batches(observe))

    @staticmethod
    def in_batches(observe: Mapping[str, Any]) -> dict[str, Any]:
        """What a record says was observed, with `targets` counted in batches, as everywhere now.

        A whole number above 1 was written before `probe_batch` could be a list: there `targets` counts records.
        """
        size, targets = observe.get("probe_batch", 1), observe.get("targets", 8)
        old = isinstance(size, int) and size > 1 and isinstance(targets, int)
        return {**observe, "targets": targets // size} if old else dict(observe)

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The form of older records if nothing is new, and a form that they never had if something is.

        Older records do not mention witnesses if all are kept. Sizes other than 1 become a list (see `of_record`).
        """
        found: dict[str, Any] = handler(self)
        found["probe_batch"] = 1 if self.sizes == (1,) else list(self.sizes)
        return {name: value for name, value in found.items() if name != "witnesses" or value is not None}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes of the probes, the smallest first: adding a larger one does not change the others."""
        return tuple(sorted(self.probe_batch)) if isinstance(self.probe_batch, tuple) else (self.probe_batch,)

    def probes(self, size: int) -> range:
        """The numbers of the probes of this batch size; within a round no two probes share a number."""
        first = self.targets * self.sizes.index(size)
        return range(first, first + self.targets)

    def size_of(self, probe: int) -> int:
        """The batch size of a probe."""
        return self.sizes[probe // self.targets]

    def records(self, size: int) -> range:
        """The positions of the victim's records of this batch size in its shard, batch by batch; no two sizes share
        any.

        With shared records, what an attack learns from a small batch would help it to solve a large one.
        """
        first = self.targets * sum(smaller for smaller in self.sizes if smaller < size)
        return range(first, first + self.targets * size)

    def start(self, probe: int) -> int:
        """The position in the shard at which the records of a probe start."""
        size = self.size_of(probe)
        return self.records(size).start + (probe - self.probes(size).start) * size

    def check_threat(self, threat: str) -> None:
        """Refuse collusion if messages are missing: colluders need all messages to extract updates from a sum."""
        if self.witnesses is not None and threat.startswith("server+clients"):
            raise UserError(
                f"The threat '{threat}' needs the messages of all clients: observe.witnesses must not be given; "
                f"given: {self.witnesses}."
            )

    def check_targets(self, shard: int) -> None:
        """Refuse more targets than the victim has records; if nothing is observed there are none."""
        needed = self.records(self.sizes[-1]).stop
        if not self.rounds or needed <= shard:
            return
        if self.sizes == (1,):
            raise UserError(f"targets ({self.targets}) must be at most the victim's records; given: {shard}.")
        raise UserError(
            f"targets ({self.targets}) batches of {_listed(self.sizes)} records need {needed} records of the victim, "
            f"no record twice; it has {shard}."
        )

    def indices(self, total: int) -> dict[int, Moment]:
        """The observed round numbers with their names; in a short run several names may refer to one round."""
        where: dict[Moment, int] = {"first": 0, "middle": total // 2, "last": total - 1}
        found: dict[int, Moment] = {}
        for moment in self.rounds:
            found.setdefault(where[moment], moment)
        return found


class Public(Settings):
    """Public knowledge: names and parameters of the code, shapes, schedule. No seed, no data, no key."""

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
