"""Runs that differ by their noise alone: the same records, the same first model, other random streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakboard.contract.checking import NotApplicable
from leakboard.contract.poison import starting_from
from leakboard.contract.worlds import really_encrypts, world_of
from leakboard.defenses.base import Defense, Gradient, JointNoise, Noise
from leakboard.federation.rounds import Federation
from leakboard.federation.task import task_of
from leakboard.federation.view import make_view, parse_threat

#: pairs of runs that are compared
PAIRS = 2


@dataclass(frozen=True)
class Draw:
    """What a view of one run lets its holders read, and what the defense says of the noise on it."""

    gradients: Mapping[str, Gradient]
    laws: Mapping[str, Noise]
    joint: JointNoise


def draws(defense: Defense, threat: str) -> list[tuple[Draw, Draw]]:
    """Pairs of draws of one round in which every client uses all its records."""
    if really_encrypts(defense):
        raise NotApplicable("encryption changes no noise, and takes minutes: see `crypto: sampled`.")
    world = world_of(defense, shard=4, rounds=1, batch_size=4, targets=1)
    public = world.outcome.public
    pinned = starting_from(defense, task_of(public).initial(0))

    def draw(seed: int) -> Draw:
        outcome = Federation(pinned, public, world.shards, world.observe, seed).run()
        parties = parse_threat(threat, len(world.shards))
        view = make_view(outcome.transcript, parties, public, outcome.secrets, world.shards)
        observation = view.of_kind("train")[0]
        return Draw(
            defense.read(observation, public).gradients,
            defense.noise_scale(observation, public),
            defense.joint_noise(observation, public),
        )

    return [(draw(2 * pair), draw(2 * pair + 1)) for pair in range(PAIRS)]
