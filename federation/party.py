"""A party and what its code can reach: its own state, its inbox, its own randomness, and the public settings."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from leakboard.core.randomness import Stream, derive_key
from leakboard.datasets.base import LabelledImages
from leakboard.federation.oracle import Oracle, RecordedOracle
from leakboard.federation.payload import Payload, Value, copy_value, size_in_bytes
from leakboard.federation.settings import SERVER, Public

PHASE_NAME = re.compile(r"[A-Za-z0-9_]{1,40}")
#: the paper's names for the phases of a round; a defense may name others
PHASES = ("Key_Gen", "MP", "Train", "DP", "Grad_Enc", "Agg", "Grad_Dec", "Recover")


class ProtocolError(Exception):
    """A defense broke its own protocol: a message is missing, or its receiver does not exist."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was sent over the channel.

    `alone`: only its receiver will ever hold this payload, so it can be delivered without a copy.
    """

    step: str
    sender: str
    receiver: str
    kind: str
    payload: Payload
    size: int
    alone: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True)
class RoundContext:
    """One run of the protocol: a training round, a probe of it, the set-up or the closing distribution.

    `probe` is the number of a probe, which is unique in its round for all batch sizes: random streams depend on it.
    """

    round: int
    probe: int | None
    kind: str  # "setup" | "train" | "probe" | "final"
    participants: tuple[str, ...]
    batch_size: int


@dataclass
class Clock:
    """Seconds by role and phase.

    `samples` are CPU seconds of one unit of work (a ciphertext) that was really done. `skipped` is the number of units
    that were not done: their time is extrapolated and never mixed with measured time.
    """

    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    skipped: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def copy(self) -> Clock:
        """A clock that goes on from here, with unknown phases at zero."""
        made = Clock()
        made.wall.update(self.wall)
        made.cpu.update(self.cpu)
        made.samples.update({key: list(found) for key, found in self.samples.items()})
        made.skipped.update(self.skipped)
        return made

    def extrapolated(self) -> dict[str, float]:
        """Median seconds of a sampled unit times the number of skipped units, by role and phase."""
        return {key: median(self.samples[key]) * count for key, count in self.skipped.items() if self.samples[key]}


class Party:
    """The only object that a step of a defense receives.

    `state` and `keys` live as long as the party. Both hold only `Value`s, so that they can be stored
    with the view. `keys` is for decryption keys, which the threat `server+keys` adds to the server.
    The inbox is emptied after each step of this party.
    """

    def __init__(self, name: str, public: Public, secret: bytes, shard: LabelledImages | None = None) -> None:
        self.name = name
        self.role = name.partition(":")[0]
        self.public = public
        self.secret = secret
        self.shard = shard
        self.state: Payload = {}
        self.keys: Payload = {}
        self.context = RoundContext(0, None, "setup", (), 0)
        self.batch: LabelledImages | None = None
        self.oracle: Oracle | RecordedOracle | None = None
        self._inbox: list[Message] = []
        self._handed: dict[str, dict[str, Payload]] = {}
        self._deliver: Callable[[Message], None] | None = None
        self._step = ""
        self._streams: dict[tuple[str, RoundContext], Stream] = {}
        self._clock = Clock()

    @property
    def index(self) -> int:
        """The number of this client."""
        return int(self.name.partition(":")[2])

    @property
    def participants(self) -> tuple[str, ...]:
        """The clients that were asked to take part in this run of the protocol."""
        return self.context.participants

    def send(self, receiver: str, kind: str, payload: Mapping[str, Value], *, size: int | None = None) -> None:
        """Send a copy of the payload; it is logged with its own size, or with the given size of what it represents."""
        self.broadcast((receiver,), kind, payload, size=size)

    def broadcast(
        self, receivers: tuple[str, ...], kind: str, payload: Mapping[str, Value], *, size: int | None = None
    ) -> None:
        """Send the same payload to several parties."""
        if self._deliver is None:
            raise ProtocolError(f"{self.name} cannot send outside a round")
        copied: Payload = copy_value(payload)
        size = size_in_bytes(copied) if size is None else size
        alone = len(receivers) == 1
        for receiver in receivers:
            self._deliver(Message(self._step, self.name, receiver, kind, copied, size, alone))

    def received(self, kind: str) -> dict[str, Payload]:
        """The payloads of this kind in the inbox, by sender.

        The caller may change them. If it asks again in the same step, it gets the same objects.
        """
        if kind not in self._handed:
            found = [message for message in self._inbox if message.kind == kind]
            if len({message.sender for message in found}) < len(found):
                raise ProtocolError(f"{self.name} received '{kind}' twice from one sender in one step")
            self._handed[kind] = {m.sender: m.payload if m.alone else copy_value(m.payload) for m in found}
        return dict(self._handed[kind])

    def expect(self, kind: str, sender: str = SERVER) -> Payload:
        """The single payload of this kind from that sender."""
        found = self.received(kind)
        if sender not in found:
            raise ProtocolError(f"{self.name} expected '{kind}' from {sender} but has {sorted(found)}")
        return found[sender]

    def stream(self, purpose: str) -> Stream:
        """This party's random stream for a purpose: fresh in every round and probe, and it continues within one."""
        key = (purpose, self.context)
        if key not in self._streams:
            where = (
                self.context.kind,
                self.context.round,
                -1 if self.context.probe is None else self.context.probe,
            )
            self._streams[key] = Stream(derive_key(self.secret, "draws", purpose, *where))
        return self._streams[key]

    def empty_inbox(self) -> None:
        """Forget all received messages: their step is over."""
        self._inbox.clear()
        self._handed.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a block under a phase: one of the paper's names (`PHASES`), or a name of the scheme's own.

        A name is a word of letters, digits and '_', as it becomes a part of a column's key.
        """
        if not PHASE_NAME.fullmatch(name):
            raise ProtocolError(f"a phase is a word of at most 40 letters, digits and '_'; given: {name!r:.60}")
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            key = f"{self.role}/{name}"
            self._clock.wall[key] += time.perf_counter() - wall
            self._clock.cpu[key] += time.process_time() - cpu

    @contextmanager
    def sample(self, name: str, units: int) -> Iterator[None]:
        """Time a block of this many units of work, as a sample for skipped work of the same kind."""
        started = time.process_time()
        yield
        if units:
            self._clock.samples[f"{self.role}/{name}"].append((time.process_time() - started) / units)

    def skip(self, name: str, units: int) -> None:
        """Count this many units of a phase as not done; their time follows from the samples."""
        self._clock.skipped[f"{self.role}/{name}"] += units


@dataclass(frozen=True)
class Step:
    """One step of a protocol: every party of that role runs it, then the messages are delivered.

    Parties of one role run one after another and cannot see each other's messages of the same step.
    """

    name: str
    role: str
    run: Callable[[Party], None]
