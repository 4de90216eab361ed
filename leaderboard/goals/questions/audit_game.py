"""The distinguishing game of an audit: the protocol runs again and again on one of two neighbouring batches.

Every trial is a run of the defense's own steps, recorded like any other: what the attack gets is the threat's part of
the log, never what a defense says of itself. Which batch it was (the bits) stays here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from leakboard.attacks.base import AuditAttack, AuditTask
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import ImagePool, LabelledImages
from leakboard.datasets.splits import Splits
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.building_blocks.encrypted import Encrypted
from leakboard.federation.oracle import Oracle, RecordedOracle
from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters, copy_value
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import VICTIM, Public, client_name
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation, Transcript
from leakboard.federation.view import Threat, limiter, make_view
from leakboard.leaderboard.goals.question import CellFacts

#: trials that are handed to the attack at once: what bounds the memory
PORTION = 50


@dataclass
class Trials(Federation):
    """A federation that trains nothing: after the set-up, every run of its protocol is a trial on the same model.

    In trial i the victim's batch is `worlds[bits[i]]`; everybody else takes the same records in all of them.
    """

    worlds: tuple[LabelledImages, ...] = ()
    bits: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    batch: int = 1
    threat: Threat | None = None

    def prepare(self) -> Parameters:
        """Run the set-up; returns the model that all trials run on."""
        self._occasion(RoundContext(0, None, "setup", self.public.clients, 0), "setup", keep=True)
        return self._global_model()

    def play(self, numbers: range) -> tuple[Observation, ...]:
        """What the threat sees of these trials; every party has fresh randomness in each and its old state after it."""
        participants = self._participants(0, observed=True)
        before = {name: (copy_value(party.state), copy_value(party.keys)) for name, party in self.parties.items()}
        self.observations = []
        for number in numbers:
            self._occasion(RoundContext(0, number, "probe", participants, self.batch), "protocol", keep=True)
            for name, party in self.parties.items():
                party.state, party.keys = copy_value(before[name][0]), copy_value(before[name][1])
        return tuple(self.observations)

    def known_batches(self) -> dict[str, LabelledImages]:
        """The other clients' batches, the same in all trials: differential privacy takes them as known."""
        others = (name for name in self._participants(0, observed=True) if name != VICTIM)
        return {name: self.shards[name].select(torch.arange(self.batch)) for name in others}

    def _batch(self, name: str, context: RoundContext) -> LabelledImages | None:
        if context.probe is None or name not in context.participants:
            return None
        source = self.worlds[int(self.bits[context.probe])] if name == VICTIM else self.shards[name]
        return source.select(torch.arange(self.batch))

    def _observation(self, context: RoundContext) -> Observation:
        assert self.threat is not None
        return limiter(self.threat)(super()._observation(context))

    def _oracle(self, context: RoundContext, name: str, observed: bool) -> Oracle | RecordedOracle:
        return super()._oracle(context, name, observed=False)  # nobody reads what it would measure


@dataclass(frozen=True)
class Game:
    """The game of one cell. `indices` are the records of world 0 and, last, the one that replaces the first of them."""

    trials: Trials
    worlds: tuple[LabelledImages, LabelledImages]
    indices: Tensor

    def task(self, observations: tuple[Observation, ...]) -> AuditTask:
        """What the attack is handed for these trials."""
        t = self.trials
        assert t.threat is not None
        view = make_view(Transcript(observations), t.threat, t.public, t.secrets, t.shards)
        return AuditTask(self.worlds, view, t.known_batches())

    def portions(self) -> Iterator[AuditTask]:
        """All trials in order, some at a time."""
        for start in range(0, len(self.trials.bits), PORTION):
            yield self.task(self.trials.play(range(start, min(start + PORTION, len(self.trials.bits)))))


def open_game(facts: CellFacts) -> Game:
    """The game of a cell: who the neighbours are, and a federation that is ready to play; the same every time."""
    attack, public, pool, splits = cast(AuditAttack, facts.make_attack()), facts.load_public(), facts.pool, facts.splits
    batch = facts.observe.sizes[0]  # the smallest: there one record shows most
    shards = {client_name(i): pool.take(shard) for i, shard in enumerate(splits.shards)}
    least = min(map(len, shards.values()))
    if least < batch:
        raise Unsupported(f"a client has {least} records: too few for a batch of {batch}")
    defense = _rehearsed(facts.make_defense())
    seed = derive_seed(facts.private_seed, "audit")
    trials = Trials(defense, public, shards, None, seed, bits=bits_of(facts), batch=batch, threat=facts.threat)
    model = trials.prepare()
    indices = _drawn(facts, batch)
    if attack.neighbours == "farthest":
        indices = _farthest(indices, pool, splits, public, defense, model)
    worlds = pool.take(indices[:batch]), pool.take(torch.cat([indices[batch:], indices[1:batch]]))
    trials.worlds = worlds
    return Game(trials, worlds, indices)


def bits_of(facts: CellFacts) -> Tensor:
    """The truth (trials,) bool: which trials are world 1; fair coins that no attack can guess."""
    generator = torch.Generator().manual_seed(derive_seed(facts.private_seed, "audit bits"))
    return torch.rand(cast(AuditAttack, facts.make_attack()).trials, generator=generator) < 0.5


def _rehearsed(defense: Defense) -> Defense:
    """The defense that plays; where the training runs under a stand-in cipher, the game needs no key either."""
    # beyond the first training round `sampled` encrypts nothing for real: the rehearsal only leaves the keys out
    return defense.rehearsal() if isinstance(defense, Encrypted) and defense.crypto == "sampled" else defense


def _drawn(facts: CellFacts, batch: int) -> Tensor:
    """A batch of the victim's records and a non-member that replaces the first, drawn without looking at them."""
    seed = derive_seed(facts.private_seed, "audit worlds", facts.cell.training.dataset.label)
    generator = torch.Generator().manual_seed(seed)
    shard, others = facts.splits.shards[0], facts.splits.non_members
    chosen = shard[torch.randperm(len(shard), generator=generator)[:batch]]
    return torch.cat([chosen, others[torch.randperm(len(others), generator=generator)[:1]]])


def _farthest(
    drawn: Tensor, pool: ImagePool, splits: Splits, public: Public, defense: Defense, model: Parameters
) -> Tensor:
    """The same batch with the worst pair of neighbours among the victim's records and the non-members.

    Differential privacy is a promise for every pair, so the auditor may choose it: the two for which a client's update,
    clipped by the defense's own hooks, is farthest apart on the model that the trials run on.
    """
    candidates = torch.cat([splits.shards[0], splits.non_members])
    candidates = candidates[~torch.isin(candidates, drawn[1:-1])]
    updates = _updates(pool.take(candidates), pool.take(drawn[1:-1]), public, defense, model)
    place = int(torch.cdist(updates, updates).argmax())
    first, second = divmod(place, len(candidates))
    return torch.cat([candidates[first][None], drawn[1:-1], candidates[second][None]])


def _updates(
    records: LabelledImages, rest: LabelledImages, public: Public, defense: Defense, model: Parameters
) -> Tensor:
    """The updates (N, d) of batches that hold one of N records and all of the rest, without the defense's noise."""
    task = task_of(public)

    def gradients(batch: LabelledImages) -> Parameters:
        pairs = zip(batch.images, batch.labels, strict=True)
        rows = [task.gradient(model, image[None], label[None])[0] for image, label in pairs]
        return {n: torch.stack([row[n] for row in rows]) for n in task.parameter_names} if rows else {}

    each, size = gradients(records), 1 + len(rest)
    shared = gradients(rest)
    observed = Gradient({name: value[0] for name, value in each.items()}, 1, size)
    of_record, of_update = defense.mimic_records(observed, public), defense.mimic(observed, public)
    if of_record is not None:
        each, shared = of_record(each), of_record(shared) if shared else {}
    means = {name: (value + (shared[name].sum(0) if shared else 0)) / size for name, value in each.items()}
    if of_update is not None:
        means = of_update(means)
    return torch.cat([value.flatten(1) for value in means.values()], dim=1)
