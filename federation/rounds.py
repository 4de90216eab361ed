"""The round loop: runs a defense's protocol step by step, delivers and logs every message, and probes.

In an observed round, after the training step, the same protocol runs again on a few fresh records of
each client (a probe). Afterwards every party gets back its earlier state, so a probe trains
nothing. The drawn records depend only on seeds and names: they are the same for all defenses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self

import torch

from leakboard.core.errors import unknown_name
from leakboard.core.randomness import derive_key, run_secret
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.federation.oracle import Ledger, Oracle, RecordedOracle
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import Clock, Message, Party, ProtocolError, RoundContext, Step
from leakboard.federation.payload import Parameters, Payload, copy_value, size_in_bytes
from leakboard.federation.script import Script
from leakboard.federation.settings import SERVER, VICTIM, Moment, ObservedRounds, Public, client_name
from leakboard.federation.snapshot import ReplaySnapshot, Snapshot
from leakboard.federation.task import Task, task_of
from leakboard.federation.transcript import Observation, Transcript
from leakboard.federation.value_files import MOST_BYTES, Damaged


class Scheme(Protocol):
    """What the loop needs from a defense (the whole contract is `defenses.base.Defense`)."""

    def third_parties(self) -> tuple[str, ...]: ...  # noqa: D102
    def setup(self) -> Sequence[Step]: ...  # noqa: D102
    def protocol(self) -> Sequence[Step]: ...  # noqa: D102
    def closing(self) -> Sequence[Step]: ...  # noqa: D102
    def rehearsal(self) -> Self: ...  # noqa: D102
    def global_model(self, server_state: Payload) -> Parameters: ...  # noqa: D102
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any: ...  # noqa: D102


def own_copy(public: Public) -> Public:
    """A copy for one party that shares nothing mutable with the others.

    The sizes of all shards are a tuple of numbers, which nobody can change. Sharing it keeps the set-up of K parties
    linear in K.
    """
    return deepcopy(public, {id(public.shard_sizes): public.shard_sizes})


@dataclass
class Federation:
    """One run: parties, clocks and the log. `run()` does everything."""

    scheme: Scheme
    public: Public
    shards: Mapping[str, LabelledImages]
    observe: ObservedRounds | None
    seed: int
    fresh_keys: bool = False
    record_all: bool = False
    script: Script | None = None
    progress: Callable[[int, int], None] = lambda done, total: None
    #: called after every round with the number of completed rounds and a function that returns the global model
    after_round: Callable[[int, Callable[[], Parameters]], None] = lambda done, model: None
    #: called after the set-up and after every round with the number of completed rounds and a function that returns a
    #: snapshot
    at_boundary: Callable[[int, Callable[[], Snapshot]], None] = lambda done, snapshot: None
    #: what a replay of the observed rounds needs is collected here; None: it is not kept
    kept: ReplaySnapshot | None = None
    secrets: dict[str, bytes] = field(default_factory=dict)
    parties: dict[str, Party] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    clocks: dict[str, Clock] = field(default_factory=lambda: defaultdict(Clock))
    bytes_by_kind: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        if self.observe is not None:
            self.observe.check_targets(self.public.shard_sizes[0])
        steps = [step.name for step in self.scheme.protocol()]
        training = self.public.training
        for name in [drop.step for drop in training.dropouts] + ["update"] * training.misses_at_random:
            if name not in steps:
                raise unknown_name("step of this defense", name, steps)
        root = run_secret(None if self.fresh_keys else self.seed)
        names = (SERVER, *self.public.clients, *self.scheme.third_parties())
        self.secrets = self.secrets or {name: derive_key(root, "party", name) for name in names}
        # each party has its own copy of the settings and the defense: even if one is mutated, no information passes
        self.parties = {
            name: Party(name, own_copy(self.public), self.secrets.get(name, b""), self.shards.get(name))
            for name in names
        }
        self._schemes: dict[str, Scheme] = {name: self.scheme.model_copy(deep=True) for name in names}
        self._log: list[Message] = []
        self._present: frozenset[str] = frozenset()
        self._gone: frozenset[str] = frozenset()
        self._late: frozenset[str] = frozenset()
        self._kept: frozenset[str] | None = None
        self._taken: dict[str, int] = defaultdict(int)
        self._positions: dict[str, torch.Tensor] = {}
        self.done: int | None = None  # completed rounds; None before the set-up
        self._client_rounds = 0
        self._models: dict[int, Parameters] = {}
        self._batches: dict[int, torch.Tensor] = {}

    def run(self) -> Outcome:
        """Set-up, all rounds with their probes, and the closing distribution of the final model.

        After `restore` the run goes on from there.
        """
        if self.done is None:
            self._set_up()
            self.done = 0
            self.at_boundary(0, self.snapshot)
        total = self.public.total_rounds
        for index in range(self.done, total):
            self._round(index)
            self.done = index + 1
            self.after_round(self.done, self._global_model)
            self.progress(self.done, total)
            self.at_boundary(self.done, self.snapshot)
        self._close()
        return self._outcome()

    def replay(self, snapshot: ReplaySnapshot) -> Outcome:
        """Run only the set-up, the observed rounds and the closing steps, each from what the snapshot holds for it.

        Times, bytes and the ledger of the outcome are those of the observed rounds alone.
        """
        total = self.public.total_rounds
        expected = {*self._observed, total}
        if set(snapshot.stages) != expected:
            raise Damaged(f"A replay needs the rounds {sorted(expected)}; given: {sorted(snapshot.stages)[:9]}.")
        for stage in snapshot.stages.values():
            self._check_parties(stage.states, stage.keys, stage.taken)
        self._set_up()
        for index in sorted(expected):
            stage = snapshot.stages[index]
            self._adopt(stage.states, stage.keys)
            self._taken.update(stage.taken)
            if index < total:
                self._round(index)
        self._close()
        return self._outcome()

    def snapshot(self) -> Snapshot:
        """The federation as it is between two rounds; only there, such as in `at_boundary` or `after_round`."""
        if self.done is None:
            raise ValueError("there is nothing to take before the set-up")
        holders = {name: party for name, party in self.parties.items() if party.state or party.keys}
        return Snapshot(
            self.done,
            {name: copy_value(party.state) for name, party in holders.items()},
            {name: copy_value(party.keys) for name, party in holders.items()},
            dict(self.secrets),
            dict(self._taken),
            self._client_rounds,
            dict(self._models),
            dict(self._batches),
            {kind: clock.copy() for kind, clock in self.clocks.items()},
            dict(self.bytes_by_kind),
            deepcopy(self.ledger),
            tuple(self.observations),
            None if self.kept is None else ReplaySnapshot(dict(self.kept.stages), dict(self.kept.held)),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Put a new federation into the state of a snapshot; one that does not fit is refused and changes nothing."""
        self._check(snapshot)
        self.done, self._client_rounds = snapshot.done, snapshot.client_rounds
        self.secrets = dict(snapshot.secrets)
        for name, party in self.parties.items():
            party.secret = self.secrets[name]
        self._adopt(snapshot.states, snapshot.keys)
        self._taken.update(snapshot.taken)
        self._models, self._batches = dict(snapshot.models), dict(snapshot.batches)
        self.clocks.update({kind: clock.copy() for kind, clock in snapshot.clocks.items()})
        self.bytes_by_kind.update(snapshot.bytes_by_kind)
        self.ledger = deepcopy(snapshot.ledger)
        self.observations = list(snapshot.observations)
        self.kept = snapshot.replay

    def _check(self, snapshot: Snapshot) -> None:
        """Refuse a snapshot of another federation."""
        total = self.public.total_rounds
        self._check_parties(snapshot.states, snapshot.keys, snapshot.taken)
        if snapshot.done > total:
            raise Damaged(f"A snapshot must be of at most {total} rounds; given: {snapshot.done}.")
        if set(snapshot.secrets) != set(self.parties):
            raise Damaged("A snapshot must hold the secret of every party and no other.")
        if not self.fresh_keys and snapshot.secrets != self.secrets:
            raise Damaged("The snapshot has other secrets: it comes from another seed or from fresh keys.")
        if (snapshot.replay is None) != (self.kept is None):
            raise Damaged("Either the snapshot or the run keeps what a replay needs, and the other does not.")
        seen = {round_ for round_ in self._observed if round_ < snapshot.done}
        if set(snapshot.models) != seen or not set(snapshot.batches) <= seen:
            raise Damaged(f"A snapshot must hold the models of the observed rounds {sorted(seen)}.")

    def _check_parties(
        self, states: Mapping[str, Payload], keys: Mapping[str, Payload], taken: Mapping[str, int]
    ) -> None:
        """Refuse parties that do not exist, and values that are too many to copy."""
        if states.keys() != keys.keys() or not {*states, *taken} <= set(self.parties):
            raise Damaged("A snapshot must hold a state and keys of existing parties, and of no others.")
        size = size_in_bytes([*states.values(), *keys.values()])
        if size > MOST_BYTES:
            raise Damaged(f"The states of a snapshot may have {MOST_BYTES} bytes; they have {size}.")

    def _adopt(self, states: Mapping[str, Payload], keys: Mapping[str, Payload]) -> None:
        """Give parties copies of these states and keys: equal tensors of a file are one object."""
        for name in states:
            self.parties[name].state, self.parties[name].keys = copy_value(states[name]), copy_value(keys[name])

    @cached_property
    def _observed(self) -> dict[int, Moment]:
        return self.observe.indices(self.public.total_rounds) if self.observe is not None else {}

    def _set_up(self) -> None:
        self._occasion(RoundContext(0, None, "setup", self.public.clients, 0), "setup", keep=True)
        if self.kept is not None:
            self.kept.after(self.parties.values())

    def _close(self) -> None:
        total = self.public.total_rounds
        if self.kept is not None:
            self.kept.before(total, self.parties.values(), {})
        self._occasion(RoundContext(total, None, "final", self.public.clients, 0), "closing", keep=True)

    def _round(self, index: int) -> None:
        """One training round and, if it is observed, its probes."""
        observed = index in self._observed
        participants = self._participants(index, observed)
        self._client_rounds += len(participants)
        if observed and self.kept is not None:
            self.kept.before(index, self._acting(participants), {name: self._taken[name] for name in participants})
        context = RoundContext(index, None, "train", participants, self.public.training.batch_size)
        before = self._global_model() if self.public.training.may_miss(index) else {}
        self._occasion(context, "protocol", keep=observed)
        if before:
            self._count_missing(index, participants, before)
        if self.observe is None or not observed:
            return
        self._models[index] = self._global_model()
        if VICTIM in self._positions and not self._drops_out(VICTIM, index):
            self._batches[index] = self._positions[VICTIM]
        self._probe(self.observe, index, participants)
        if self.kept is not None:
            self.kept.after(self._acting(participants))

    def _outcome(self) -> Outcome:
        clock = self.clocks["train"]
        setup = self.clocks["setup"]
        return Outcome(
            self.public,
            Transcript(tuple(self.observations)),
            self.secrets,
            self._global_model(),
            self._models,
            self._observed,
            {key: clock.wall[key] + setup.wall[key] for key in {**clock.wall, **setup.wall}},
            {key: clock.cpu[key] + setup.cpu[key] for key in {**clock.cpu, **setup.cpu}},
            clock.extrapolated(),
            dict(self.bytes_by_kind),
            self._client_rounds,
            self.ledger,
            self._batches,
            self.kept,
        )

    def _oracle(self, context: RoundContext, name: str, observed: bool) -> Oracle | RecordedOracle:
        """What this client may ask beyond its own knowledge (see `federation.oracle`)."""
        if self.script is not None:
            return RecordedOracle(self.script.answers(context, name))
        state = self.parties[SERVER].state
        return Oracle(self._task, self._global_model, lambda: state, self.ledger, observed)

    @cached_property
    def _task(self) -> Task:
        return task_of(self.public)  # the lookup compares all settings: do it once, not per client and round

    def _global_model(self) -> Parameters:
        return self.scheme.global_model(self.parties[SERVER].state) if self._is_live(SERVER) else {}

    def _participants(self, index: int, observed: bool) -> tuple[str, ...]:
        """K of N clients from the seed; in observed rounds the victim is one of them."""
        training = self.public.training
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "participants", index))
        order = torch.randperm(training.clients, generator=generator).tolist()
        chosen = order[: training.per_round]
        if observed and 0 not in chosen:
            chosen[-1] = 0
        return tuple(client_name(number) for number in sorted(chosen))

    def _missing(self, index: int) -> tuple[frozenset[str], frozenset[str]]:
        """The clients that are missing in a training round by chance, from the seed: who drops out, whose update is
        late.
        """
        training = self.public.training
        if not training.misses_at_random:
            return frozenset(), frozenset()
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "missing", index))
        drawn = torch.rand(training.clients, generator=generator, dtype=torch.float64).tolist()
        gone = {i for i, value in enumerate(drawn) if value < training.dropout}
        late = {i for i, value in enumerate(drawn) if value < training.dropout + training.late} - gone
        return frozenset(map(client_name, gone)), frozenset(map(client_name, late))

    def _count_missing(self, index: int, participants: Iterable[str], before: Parameters) -> None:
        """For the record: how many clients were missing, the most of one round, and rounds without a step."""
        gone, late = self._missing(index)
        out = [name for name in participants if name in gone | late or self._drops_out(name, index)]
        self.ledger.count("clients_missing", len(out))
        self.ledger.keep("most_missing", len(out))
        after = self._global_model()
        self.ledger.count("rounds_lost", all(torch.equal(value, after[name]) for name, value in before.items()))

    def _acting(self, participants: Iterable[str]) -> list[Party]:
        """The parties of a round: those that are no clients, and these clients."""
        present = frozenset(participants)
        return [party for party in self.parties.values() if party.role != "client" or party.name in present]

    def _probe(self, observe: ObservedRounds, index: int, participants: tuple[str, ...]) -> None:
        """Run the protocol once for each batch of targets, the smallest first, then restore every state."""
        before = [(party, party.state, party.keys) for party in self._acting(participants)]
        for number in (number for size in observe.sizes for number in observe.probes(size)):
            for party, state, keys in before:
                party.state, party.keys = copy_value(state), copy_value(keys)
            context = RoundContext(index, number, "probe", participants, observe.size_of(number))
            self._occasion(context, "protocol", keep=True)
        for party, state, keys in before:
            party.state, party.keys = state, keys

    def _occasion(self, context: RoundContext, part: str, keep: bool) -> None:
        """Run one part of the protocol (`setup`, `protocol` or `closing`) with all its parties."""
        logged = keep or self.record_all
        self._log, self._present = [], frozenset(context.participants)
        self._kept = self._witnesses(context)
        self._gone, self._late = self._missing(context.round) if context.kind == "train" else (frozenset(), frozenset())
        if context.kind == "train":
            training = [name for name in context.participants if name in self.shards]
            self._positions = {name: self._next_positions(name) for name in training}
        acting = self._acting(context.participants)  # once per context: of 10,000 clients perhaps ten take part
        for party in acting:
            party.context = context
            party.oracle = self._oracle(context, party.name, keep) if party.role == "client" else None
            party._clock = self.clocks[context.kind]
        steps: Sequence[Step] = getattr(self.scheme, part)()
        for position, step in enumerate(steps):
            self._step(step, position, context, part, logged, acting)
        if logged:
            self.observations.append(self._observation(context))
        self._log = []
        self.ledger.sums = {}  # a sum from which a client is missing is never complete
        for party in self.parties.values():
            party.empty_inbox()
            party._streams.clear()
            party.oracle = None

    def _step(
        self, step: Step, position: int, context: RoundContext, part: str, logged: bool, acting: Sequence[Party]
    ) -> None:
        """Let every party of the step's role run it; deliver the messages after all have run."""
        sent: list[Message] = []
        for party in acting:
            name = party.name
            if party.role != step.role or not self._takes_part(party, step, context):
                continue
            if self.script is not None and not self._is_live(name):
                sent += self.script.sent(context, step.name, name)
                continue
            own: list[Message] = []  # not `sent`: a party must not reach what others send in the same step
            party._step, party._deliver = step.name, own.append
            party.batch = self._batch(name, context)  # only now, to avoid holding the records of all clients at once
            own_steps: Sequence[Step] = getattr(self._schemes[name], part)()
            own_steps[position].run(party)
            party._deliver = party.batch = None
            party.empty_inbox()
            sent += own
        for message in sent:
            if message.receiver not in self.parties:
                raise ProtocolError(
                    f"{message.sender} sent '{message.kind}' to {message.receiver}, which does not exist"
                )
            if context.kind == "train":
                self.bytes_by_kind[message.kind] += message.size
            noted = logged and self._is_witnessed(message)
            if noted:  # the log holds it too, so its receiver gets a copy
                self._log.append(replace(message, alone=False))
            if message.sender in self._late and step.name == "update":
                continue  # it arrives when the server has closed the round: the server holds it and counts it nowhere
            self.parties[message.receiver]._inbox.append(self._log[-1] if noted else message)

    def _witnesses(self, context: RoundContext) -> frozenset[str] | None:
        """The clients whose messages and states the transcript stores (`ObservedRounds.witnesses`); None: all."""
        if self.observe is None or self.observe.witnesses is None:
            return None
        # the victim, and client 1, which is the attacker of the threat `client`, independent of the other participants
        names = dict.fromkeys((VICTIM, client_name(1), *context.participants))
        return frozenset(list(names)[: self.observe.witnesses])

    def _is_witnessed(self, message: Message) -> bool:
        """Whether the sender or the receiver of a message is a witness, or neither is a client."""
        if self._kept is None:
            return True
        ends = [name for name in (message.sender, message.receiver) if self.parties[name].role == "client"]
        return not ends or not self._kept.isdisjoint(ends)

    def _is_live(self, name: str) -> bool:
        return self.script is None or name in self.script.live

    def _takes_part(self, party: Party, step: Step, context: RoundContext) -> bool:
        """Clients run only if they participate, and not after they dropped out."""
        if party.role != "client":
            return True
        if party.name not in self._present:
            return False
        if context.kind != "train" or not self.public.training.may_miss(context.round):
            return True
        names = [s.name for s in self.scheme.protocol()]
        if party.name in self._gone | self._late:
            sends = names.index("update") + (party.name in self._late)
            if names.index(step.name) >= sends:
                return False
        return not any(
            drop.client == party.index
            and drop.round == context.round
            and names.index(step.name) >= names.index(drop.step)
            for drop in self.public.training.dropouts
        )

    def _drops_out(self, name: str, index: int) -> bool:
        """Whether a client drops out in the middle of that round; one that is only late does not."""
        return name in self._missing(index)[0] or any(
            client_name(d.client) == name and d.round == index for d in self.public.training.dropouts
        )

    def _batch(self, name: str, context: RoundContext) -> LabelledImages | None:
        """The client's records for this context: the next batch of its epoch, or the probe's targets."""
        shard = self.shards.get(name)
        if shard is None or context.kind in ("setup", "final"):
            return None
        if context.probe is None:
            return shard.select(self._positions[name])
        assert self.observe is not None
        return shard.select((torch.arange(context.batch_size) + self.observe.start(context.probe)) % len(shard))

    def _next_positions(self, name: str) -> torch.Tensor:
        """The next batch, epoch by epoch without replacement; an epoch has floor(shard / size) whole batches."""
        shard, size = len(self.shards[name]), self.public.training.batch_size
        epoch, batch = divmod(self._taken[name], shard // size)
        self._taken[name] += 1
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "batches", name, epoch))
        return torch.randperm(shard, generator=generator)[batch * size : (batch + 1) * size].clone()

    def _observation(self, context: RoundContext) -> Observation:
        """Freeze the log, and the current states and keys of all parties."""
        present = {
            name: party
            for name, party in self.parties.items()
            if party.role != "client" or name in self._present or name == VICTIM
        }
        shown = {n: p for n, p in present.items() if p.role != "client" or self._kept is None or n in self._kept}
        return Observation(
            context,
            tuple(self._log),
            {name: copy_value(party.state) for name, party in shown.items()},
            # all keys, which are small: `server+keys` needs the keys of many parties
            {name: copy_value(party.keys) for name, party in present.items() if party.keys},
            {name: party.oracle.answers for name, party in shown.items() if party.oracle and party.oracle.answers},
        )
