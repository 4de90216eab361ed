"""A server that sends overflowing weights: noise still covers every value, whichever record overflows.

Issue 17, 7: what is not finite was replaced after the noise (or not at all), so it told two worlds apart for certain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from leakboard.datasets.base import LabelledImages
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.rounds import Federation, Outcome
from leakboard.federation.settings import ObservedRounds, Public
from leakboard.federation.task import task_of
from leakboard.federation.view import make_view, parse_threat
from tests.contract.poison import HUGE, overflowing, poisoned
from tests.contract.worlds import World, defenses, make_world, title

#: values of 16 bits repeat in two draws with a probability of about 1e-4, so in all of five with 1e-16 at most
SEEDS = range(5)
#: the victim's record that overflows, of four
RECORD = 1


@dataclass(frozen=True)
class Poison:
    """A sound federation of one round on whole shards, and the weights that overflow for one record of the victim."""

    world: World
    model: Parameters

    @property
    def public(self) -> Public:
        return self.world.outcome.public

    @property
    def victim(self) -> LabelledImages:
        return self.world.shards["client:0"]

    def run(self, seed: int) -> Outcome:
        """The same federation with the poisoned weights; another seed draws other noise, on the same records."""
        defense = poisoned(self.world.defense, self.model)
        return Federation(
            defense, self.public, self.world.shards, ObservedRounds(rounds=("first",), targets=1), seed
        ).run()

    def sent(self, received: Payload, chosen: list[int], seed: int) -> Payload:
        """What a client sends for these records of the victim; under encryption, what is inside."""
        batch = self.victim.select(torch.tensor(chosen))
        return self.world.defense.simulate(self.public, received, batch.images, batch.labels, seed)


#: encryption changes no value and takes minutes
QUICK = [defense for defense in defenses() if defense.parameters().get("crypto") != "real"]


@pytest.fixture(scope="module", params=QUICK, ids=title)
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param, model_parameters={"hidden": [8]}, shard=4, rounds=1, batch_size=4, targets=1)


@pytest.fixture(scope="module")
def poison(world: World) -> Poison:
    return Poison(world, overflowing(world.outcome.public, world.shards["client:0"], torch.arange(4) == RECORD))


@pytest.fixture(scope="module")
def outcomes(poison: Poison) -> list[Outcome]:
    return [poison.run(seed) for seed in range(2)]


def received(outcome: Outcome) -> Payload:
    """The first model that a client got."""
    sent = (m for o in outcome.transcript.observations for m in o.messages if m.kind == "model")
    payload: Payload = next(sent).payload
    return payload


def vector(values: Parameters) -> Tensor:
    return torch.cat([value.double().flatten() for value in values.values()])


def untouched(draws: list[Tensor]) -> int:
    """How many values (D,) are the same in all draws, or not finite in any: no noise is on them."""
    stacked = torch.stack(draws)
    return int(((stacked == stacked[0]).all(0) | ~stacked.isfinite().all(0)).sum())


def noisy_parts(poison: Poison) -> list[str]:
    """The parts of a client's message that carry noise on a sound model: they differ between two draws."""
    sound = received(poison.world.outcome)
    one, two = (poison.sent(sound, [0], seed) for seed in range(2))
    parts = [n for n, p in one.items() if isinstance(p, dict) and p and all(isinstance(v, Tensor) for v in p.values())]
    return [n for n in parts if not torch.equal(vector(one[n]), vector(two[n]))]


@pytest.mark.parametrize("records", [[RECORD], [0], [0, RECORD], [0, RECORD, 2, 3]], ids=str)
def test_noise_is_on_every_value_whichever_record_overflows(
    poison: Poison, outcomes: list[Outcome], records: list[int]
) -> None:
    """The server may as well send no numbers at all."""
    plain = received(outcomes[0])
    broken = {"model": {name: torch.full_like(value, torch.nan) for name, value in plain["model"].items()}}
    for weights in (plain, {**plain, **broken}):
        draws = [poison.sent(weights, records, seed) for seed in SEEDS]
        for part in noisy_parts(poison):
            assert untouched([vector(sent[part]) for sent in draws]) == 0, part


def test_whoever_claims_differential_privacy_of_messages_noises_every_part(poison: Poison) -> None:
    if not poison.world.defense.claims(poison.public).get("dp_holds"):
        pytest.skip("no such claim")
    parts = {n for n, p in poison.sent(received(poison.world.outcome), [0], 0).items() if isinstance(p, dict) and p}
    assert parts == set(noisy_parts(poison))


def test_what_an_active_server_reads_is_finite_where_there_is_noise(poison: Poison, outcomes: list[Outcome]) -> None:
    defense, public = poison.world.defense, poison.public
    for outcome in outcomes:
        threat = parse_threat("server+keys", len(poison.world.shards))
        view = make_view(outcome.transcript, threat, public, outcome.secrets, poison.world.shards)
        for observation in view.of_kind("train") + view.of_kind("probe"):
            read = defense.read(observation, public).gradients
            for owner in defense.noise_scale(observation, public):
                assert bool(vector(read[owner].values).isfinite().all()), owner


def test_central_noise_is_on_every_value_of_the_model(poison: Poison, outcomes: list[Outcome]) -> None:
    """Two runs' models differ by lr sigma sqrt2 times normals, where a weight is not so large that it swallows them.

    More than 10,000 of them: their root mean square is within 5 % of 1 but for one in 10^10 keys.
    """
    sigma = poison.world.defense.claims(poison.public).get("sigma_central")
    if sigma is None:
        pytest.skip("no central noise")
    task = task_of(poison.public)
    names = task.parameter_names
    one, two = (vector({name: outcome.model[name] for name in names}) for outcome in outcomes)
    moderate = vector({name: poison.model[name] for name in names}).abs() < math.sqrt(HUGE)
    difference = (one - two)[moderate] / (poison.public.training.learning_rate * sigma * math.sqrt(2))
    assert bool(difference.isfinite().all())
    assert float(difference.square().mean().sqrt()) == pytest.approx(1, abs=0.05)
