"""Clients that collude with the server know the pairwise noise that they share with the victim."""

from __future__ import annotations

import math

import pytest
import torch

from leakboard.contract.worlds import World, make_world
from leakboard.defenses.mp_dp import MpDp
from leakboard.federation.settings import SERVER, VICTIM
from leakboard.federation.view import View


def noise_seen(world: World, clean: World, threat: str) -> torch.Tensor:
    """What remains of the noise in the victim's gradient, in units of its own noise given R (uniform in [-1, 1])."""
    view: View = world.view(threat)
    defense = world.defense
    assert isinstance(defense, MpDp)
    found = []
    for noisy, quiet in zip(defense.interpret(view), clean.defense.interpret(clean.view(threat)), strict=True):
        if noisy.context.kind != "train":  # before the first step both runs have the same model
            continue
        public = world.outcome.public
        edges = defense._typical_edges(len(noisy.context.participants))
        sigma = defense.sigmas(public, len(noisy.context.participants), edges, noisy.context.batch_size).own
        state = next(o for o in view.observations if o.context == noisy.context).states[SERVER]
        for name, value in noisy.gradients[VICTIM].values.items():
            difference = value - quiet.gradients[VICTIM].values[name]
            found.append((difference / factor(defense, world, state, name) / (math.sqrt(2) * sigma)).flatten())
    return torch.cat(found)


def factor(defense: MpDp, world: World, state: dict[str, object], name: str) -> torch.Tensor:
    from leakboard.defenses.building_blocks.model_perturbation import unpack_secret

    wiring = defense.expanded(world.outcome.public).wiring
    weight = next(w for w in wiring.weights if f"{w.name}.weight" == name)
    return unpack_secret(state["secret"]).matrix(weight, world.outcome.model[name])  # type: ignore[arg-type]


@pytest.mark.parametrize("neighbours", [None, 2])
def test_when_all_others_collude_only_the_victim_s_own_noise_is_left(neighbours: int | None) -> None:
    world = make_world(MpDp(neighbours=neighbours), rounds=1)
    clean = make_world(MpDp(neighbours=neighbours, noise=False), rounds=1)
    alone = noise_seen(world, clean, "server")
    half = noise_seen(world, clean, "server+clients:1")
    everyone = noise_seen(world, clean, "server+clients:2")
    assert float(everyone.abs().max()) <= 1 + 1e-6  # bounded: eta alone, uniform
    assert float(half.square().mean()) < 0.7 * float(alone.square().mean())
    assert float(everyone.square().mean()) == pytest.approx(1 / 3, rel=0.05)
