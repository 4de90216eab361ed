"""Rules about a server that sends overflowing weights: noise covers every value, whichever record overflows.

NaN plus noise is NaN. Where one record overflows and another does not, that tells the two apart for certain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakboard.contract.checking import Broken, NotApplicable
from leakboard.contract.poison import HUGE, overflowing, starting_from
from leakboard.contract.worlds import World, really_encrypts, world_of
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.federation.outcome import Outcome
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public
from leakboard.federation.task import task_of
from leakboard.federation.view import make_view, parse_threat

#: values of 16 bits repeat in two draws with a probability of about 1e-4, so in all of five with 1e-16 at most
SEEDS = range(5)
#: the victim's record that overflows, of four, and the batches that are tried
RECORD = 1
BATCHES = ([RECORD], [0], [0, RECORD], [0, RECORD, 2, 3])


def check_noise_covers_every_value(defense: Defense) -> None:
    """Whatever carries noise carries it on every value, also where a record overflows or the server sends NaN."""
    poison = Poison.of(defense)
    parts = poison.noisy_parts()
    if not parts:
        raise NotApplicable("a client's message carries no noise.")
    plain = received(poison.run(0))
    broken = {"model": {name: torch.full_like(value, torch.nan) for name, value in plain["model"].items()}}
    for records in BATCHES:
        for weights in (plain, {**plain, **broken}):
            draws = [poison.sent(weights, records, seed) for seed in SEEDS]
            for part in parts:
                bare = untouched([vector(sent[part]) for sent in draws])
                if bare:
                    raise Broken(f"{bare} values of '{part}' carry no noise for the records {records} of the client.")


def check_claimed_privacy_noises_every_part(defense: Defense) -> None:
    """A defense that claims differential privacy of its messages (`dp_holds`) puts noise on every part of them."""
    poison = Poison.of(defense)
    if not defense.claims(poison.public).get("dp_holds"):
        raise NotApplicable("it makes no such claim.")
    sent = poison.sent(received(poison.world.outcome), [0], 0)
    bare = {name for name, part in sent.items() if isinstance(part, dict) and part} - set(poison.noisy_parts())
    if bare:
        raise Broken(f"The part '{min(bare)}' of a client's message carries no noise.")


def check_an_active_server_reads_finite_values(defense: Defense) -> None:
    """What a server with overflowing weights reads is finite wherever `noise_scale` says that there is noise."""
    poison = Poison.of(defense)
    owners = 0
    for seed in range(2):
        outcome = poison.run(seed)
        threat = parse_threat("server+keys", len(poison.world.shards))
        view = make_view(outcome.transcript, threat, poison.public, outcome.secrets, poison.world.shards)
        for observation in view.of_kind("train") + view.of_kind("probe"):
            read = defense.read(observation, poison.public).gradients
            for owner in defense.noise_scale(observation, poison.public):
                owners += 1
                if not bool(vector(read[owner].values).isfinite().all()):
                    raise Broken(f"The gradient of '{owner}' holds values that are not finite.")
    if not owners:
        raise NotApplicable("`noise_scale` names no noise on what the server reads.")


def check_central_noise_is_on_every_value(defense: Defense) -> None:
    """A defense that claims central noise (`sigma_central`) puts it on every value of the model.

    Two runs' models differ by lr sigma sqrt2 times normals, where a weight is not so large that it swallows them.
    More than 10,000 of them: their root mean square is within 5 % of 1 but for one in 10^10 keys.
    """
    poison = Poison.of(defense)
    sigma = defense.claims(poison.public).get("sigma_central")
    if sigma is None:
        raise NotApplicable("it claims no central noise.")
    names = task_of(poison.public).parameter_names
    one, two = (vector({name: poison.run(seed).model[name] for name in names}) for seed in range(2))
    moderate = vector({name: poison.model[name] for name in names}).abs() < math.sqrt(HUGE)
    difference = (one - two)[moderate] / (poison.public.training.learning_rate * sigma * math.sqrt(2))
    if not bool(difference.isfinite().all()):
        raise Broken("The trained model holds values that are not finite.")
    size = float(difference.square().mean().sqrt())
    if abs(size - 1) > 0.05:
        raise Broken(f"The noise on the model is {size:.3f} times as large as claimed.")


@dataclass(frozen=True)
class Poison:
    """A sound federation of one round on whole shards, and the weights that overflow for one record of the victim."""

    world: World
    model: Parameters

    @classmethod
    def of(cls, defense: Defense) -> Poison:
        """The federation of a defense."""
        if really_encrypts(defense):
            raise NotApplicable("encryption changes no value, and takes minutes: see `crypto: sampled`.")
        world = world_of(defense, shard=4, rounds=1, batch_size=4, targets=1)
        return cls(world, overflowing(world.outcome.public, world.shards["client:0"], torch.arange(4) == RECORD))

    @property
    def public(self) -> Public:
        """The public settings."""
        return self.world.outcome.public

    @property
    def victim(self) -> LabelledImages:
        """The records of client 0."""
        return self.world.shards["client:0"]

    def run(self, seed: int) -> Outcome:
        """The same federation with the poisoned weights; another seed draws other noise, on the same records."""
        defense = starting_from(self.world.defense, self.model)
        return Federation(
            defense, self.public, self.world.shards, ObservedRounds(rounds=("first",), targets=1), seed
        ).run()

    def sent(self, received: Payload, chosen: list[int], seed: int) -> Payload:
        """What a client sends for these records of the victim; under encryption, what is inside."""
        batch = self.victim.select(torch.tensor(chosen))
        return self.world.defense.simulate(self.public, received, batch.images, batch.labels, seed)

    def noisy_parts(self) -> list[str]:
        """The parts of a client's message that carry noise on a sound model: they differ between two draws."""
        sound = received(self.world.outcome)
        one, two = (self.sent(sound, [0], seed) for seed in range(2))
        parts = [n for n, p in one.items() if isinstance(p, dict) and p and all(torch.is_tensor(v) for v in p.values())]
        return [n for n in parts if not torch.equal(vector(one[n]), vector(two[n]))]


def received(outcome: Outcome) -> Payload:
    """The first model that a client got."""
    sent = (m for o in outcome.transcript.observations for m in o.messages if m.kind == "model")
    payload: Payload = next(sent).payload
    return payload


def vector(values: Parameters) -> Tensor:
    """All values in one vector of float64."""
    return torch.cat([value.double().flatten() for value in values.values()])


def untouched(draws: list[Tensor]) -> int:
    """How many values (D,) are the same in all draws, or not finite in any: no noise is on them."""
    stacked = torch.stack(draws)
    return int(((stacked == stacked[0]).all(0) | ~stacked.isfinite().all(0)).sum())
