"""One key for the plain sum opens every single update of hybridalpha as specified, and none of the corrected one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakboard.attacks.base import Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.mix_and_match import MixAndMatch, differences, isolated
from leakboard.contract.worlds import World, make_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported, UserError
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.hybridalpha import HybridAlpha
from leakboard.federation.settings import SERVER, ObservedRounds
from leakboard.federation.task import task_of
from leakboard.leaderboard.goals.reconstruction import Reconstruction
from leakboard.metrics.psnr import psnr
from tests.defenses.makings import flat
from tests.defenses.small import quiet, sent_codes, small_run


def hybrid(**parameters: object) -> HybridAlpha:
    made = quiet("hybridalpha", **{"keys": "shared", **parameters})
    assert isinstance(made, HybridAlpha)
    return made


@pytest.mark.parametrize("crypto", ["sampled", "real"])
def test_every_code_of_every_client_is_known_up_to_one_constant(crypto: str) -> None:
    defense = hybrid(crypto=crypto)
    run = small_run(defense, hidden=(1,), observe=ObservedRounds(rounds=("last",), targets=1))
    at = run.outcome.transcript.observations[1]
    assert at.context.kind == "train"
    seen = at.limited((SERVER,), (SERVER,))
    for client, codes in sent_codes(run, at).items():
        found = differences(defense, seen, run.public, client)
        assert np.array_equal(found, codes - codes[0])
        assert len(set(found.tolist())) > 3


def test_a_pad_for_each_coordinate_closes_it() -> None:
    defense = hybrid(keys="per-slot")
    run = small_run(defense, hidden=(1,), observe=ObservedRounds(rounds=("last",), targets=1))
    at = run.outcome.transcript.observations[1]
    codes = sent_codes(run, at)["client:0"]
    found = differences(defense, at.limited((SERVER,), (SERVER,)), run.public, "client:0")
    assert not np.any(found[1:] == (codes - codes[0])[1:])  # 64-bit noise
    known = Knowledge(run.view("server"), defense, run.shards["client:1"], 5)
    with pytest.raises(Unsupported, match="its own pad"):
        MixAndMatch().reconstruct(known, ReconstructionTask("last", 0, 1, 1, None, (3,)))


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(hybrid(), model_parameters={"hidden": [64]}, rounds=1, seed=7)


def task_of_world(world: World) -> ReconstructionTask:
    return ReconstructionTask("last", 0, world.observe.targets, 1, None, (3,) * world.observe.targets)


def known_by_server(world: World) -> Knowledge:
    return Knowledge(world.view("server"), world.defense, world.auxiliary, 5)


def test_the_median_is_the_constant_where_units_are_off(world: World) -> None:
    """A record's own gradient on a ReLU network: so many zeros that the median is one of them; a step remains."""
    assert isinstance(world.defense, HybridAlpha)
    step = world.defense.codec(world.outcome.public, 1).step
    for at in world.view("server").of_kind("probe"):
        found = isolated(world.defense, at, world.outcome.public, "client:0")
        probe = at.context.probe
        assert probe is not None
        record = world.shards["client:0"].select(torch.tensor([probe]))
        model = next(m.payload["model"] for m in at.messages if m.kind == "model")
        true, _ = task_of(world.outcome.public).gradient(model, record.images, record.labels)
        assert float((flat(found) - flat(true)).abs().max()) < 0.51 * step


def test_records_of_all_clients_come_back(world: World) -> None:
    task = task_of_world(world)
    answer = MixAndMatch(attack="analytic").reconstruct(known_by_server(world), task)
    Reconstruction().accept(answer, task, world.outcome.public)
    for probe, images in enumerate(answer.images):
        for number, image in enumerate(images):
            original = world.shards[f"client:{number}"].images[probe]
            assert float(psnr(image[None].clamp(0, 1), original[None])) > 25, (probe, number)


def test_a_law_of_the_sum_s_noise_is_not_taken_for_that_of_single_updates() -> None:
    """`noise_scale` tells of what the honest reading has, which is the mean over clients."""
    noisy = make_world(hybrid(noise=True), model_parameters={"hidden": [4]}, rounds=1)
    attack = MixAndMatch(attack="noise-aware", params={"iterations": 1})
    answer = attack.reconstruct(known_by_server(noisy), task_of_world(noisy))
    assert any("no noise of a known law" in flag for flag in answer.flags)


def test_other_defenses_have_no_key_to_mix() -> None:
    plain = make_world(FedSGD(), model_parameters={"hidden": [4]}, rounds=1)
    with pytest.raises(Unsupported, match="no functional keys"):
        MixAndMatch().reconstruct(known_by_server(plain), task_of_world(plain))


@pytest.mark.parametrize("name", ["mix-and-match", "rmia"])
def test_it_runs_another_reconstruction_attack(name: str) -> None:
    with pytest.raises(UserError, match="another reconstruction attack"):
        registry.create("attack", "mix-and-match", {"attack": name})
