"""The audit on small games: certain without noise, blind without a difference, and each trial scored separately."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from leakboard.attacks.audit.building_blocks.evidence import Evidence
from leakboard.attacks.audit.building_blocks.worlds import Worlds
from leakboard.attacks.audit.likelihood_audit import LikelihoodAudit
from leakboard.attacks.base import AuditTask, Knowledge
from leakboard.contract.worlds import World, blobs, make_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import digest_of
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.federation.view import parse_threat
from leakboard.leaderboard.goals.questions.audit_game import Game, Trials
from leakboard.metrics.epsilon_lower import epsilon_lower

BATCH = 2


@cache
def world_of(name: str, **parameters: Any) -> World:
    defense = registry.create("defense", name, parameters)
    assert isinstance(defense, Defense)
    return make_world(defense, model_parameters={"hidden": [8]}, rounds=1)


def game(
    world: World, trials: int, *, equal: bool = False, threat: str = "server", clients: int = 3
) -> tuple[Game, Tensor]:
    """A game on two records of the victim; in one world the first is replaced by a record outside the training set."""
    bits = torch.rand(trials, generator=torch.Generator().manual_seed(4)) < 0.5
    shard = world.shards["client:0"]
    zero = shard.select(torch.arange(BATCH))
    other = world.unseen.select(torch.arange(1))
    one = LabelledImages(torch.cat([other.images, zero.images[1:]]), torch.cat([other.labels, zero.labels[1:]]))
    worlds = (zero, zero if equal else one)
    played = Trials(
        world.defense,
        world.outcome.public,
        world.shards,
        None,
        77,
        worlds=worlds,
        bits=bits,
        batch=BATCH,
        threat=parse_threat(threat, clients),
    )
    played.prepare()
    return Game(played, worlds, torch.arange(BATCH + 1)), bits


def knowledge(world: World, threat: str = "server") -> Knowledge:
    return Knowledge(world.view(threat), world.defense, world.auxiliary, 5)


def audited(world: World, part: str, trials: int, **how: Any) -> tuple[Tensor, Tensor]:
    found, bits = game(world, trials, **how)
    attack = LikelihoodAudit(part=cast(Any, part))
    known = knowledge(world, how.get("threat", "server"))
    return torch.cat([attack.distinguish(known, task).scores for task in found.portions()]), bits


def tells_apart(scores: Tensor, bits: Tensor) -> bool:
    """Whether one threshold separates all trials, in the direction that the contract defines."""
    return float(scores[bits].min()) > float(scores[~bits].max())


@pytest.mark.parametrize("part", ["gradient", "view", "support"])
@pytest.mark.parametrize("name", ["fedsgd", "cdp", "mp-cdp"])
def test_where_the_server_sees_exact_gradients_it_is_certain(name: str, part: str) -> None:
    assert tells_apart(*audited(world_of(name), part, 20))


@pytest.mark.parametrize(("name", "parameters"), [("secagg", {}), ("pile", {"sample_values": 0})])
def test_a_sum_alone_hides_no_record_when_the_others_stay_the_same(name: str, parameters: dict[str, Any]) -> None:
    scores, bits = audited(world_of(name, **parameters), "gradient", 20)
    assert tells_apart(scores, bits)


@pytest.mark.parametrize("variant", ["V1", "V2"])
def test_psi_and_phi_give_mp_dp_away_though_its_gradient_does_not(variant: str) -> None:
    world = world_of("mp-dp", variant=variant)
    scores, bits = audited(world, "view", 20)
    assert tells_apart(scores, bits)
    scores, bits = audited(world, "gradient", 20)
    assert not tells_apart(scores, bits)


def test_bounded_noise_gives_mp_ldp_away() -> None:
    scores, bits = audited(world_of("mp-ldp"), "support", 40)
    assert float(epsilon_lower(scores, bits).epsilon) == epsilon_lower(scores, bits).ceiling


@pytest.mark.parametrize(
    ("name", "weighs"),
    [("mp", False), ("mp-cdp", False), ("pile", False)]
    + [(name, True) for name in ("mp-dp", "mp-ldp", "mp-dp-naive", "mp-dp+")],
)
def test_noise_alone_is_weighed_by_r(name: str, weighs: bool) -> None:
    world = world_of(name, **({"sample_values": 0} if name == "pile" else {}))
    task = next(game(world, 1)[0].portions())
    worlds = Worlds(world.defense, task)
    worlds.look(task.trials[0])
    scale = worlds.gradient(noise_aware=True).scale
    assert bool((scale != 1).any()) == weighs


@pytest.mark.parametrize("name", ["fedsgd", "mp-dp", "mp-ldp", "ldp", "tp-smc", "mp-dp+"])
@pytest.mark.parametrize("part", ["gradient", "view", "support"])
def test_equal_worlds_score_nothing_at_all(name: str, part: str) -> None:
    small = {"tp-smc": {"sample_values": 0}}.get(name, {})
    scores, _ = audited(world_of(name, **small), part, 4, equal=True)
    assert not scores.any()


def parts_of(world: World, task: AuditTask, number: int) -> list[Evidence]:
    worlds = Worlds(world.defense, task)
    worlds.look(task.trials[number])
    worlds.gradient(noise_aware=True)
    return worlds.others()


@pytest.mark.parametrize(("name", "parameters"), [("mp-dp", {}), ("mp-dp", {"variant": "V1"}), ("mp-ldp", {})])
def test_what_a_world_would_send_is_what_the_client_sent(name: str, parameters: dict[str, Any]) -> None:
    """Psi and Phi of a clipped batch, from simulated messages of single records and the server's own factors."""
    world = world_of(name, **parameters)
    found, bits = game(world, 4)
    task = next(found.portions())
    for number in range(4):
        psi, phi = parts_of(world, task, number)
        for part in (psi, phi):
            true, false = (part.one, part.zero) if bits[number] else (part.zero, part.one)
            assert float((part.seen - true).norm()) < 1e-4 * float((part.seen - false).norm())


@pytest.mark.parametrize(("name", "parameters"), [("mp-dp+", {"noise": False}), ("pile", {"sample_values": 0})])
def test_a_sum_is_what_all_clients_would_send(name: str, parameters: dict[str, Any]) -> None:
    """The same for what the server decrypts: if the others' records are known, so is the whole sum."""
    world = world_of(name, **parameters)
    found, bits = game(world, 4)
    task = next(found.portions())
    for number in range(4):
        for part in parts_of(world, task, number):
            true, false = (part.one, part.zero) if bits[number] else (part.zero, part.one)
            assert float((part.seen - true).norm()) < 1e-3 * float((part.seen - false).norm())


def test_the_gradient_of_the_right_world_is_what_is_left_without_noise() -> None:
    world = world_of("mp-dp", noise=False)
    found, bits = game(world, 4)
    task = next(found.portions())
    for number, trial in enumerate(task.trials):
        worlds = Worlds(world.defense, task)
        worlds.look(trial)
        evidence = worlds.gradient(noise_aware=True)
        true, false = (evidence.one, evidence.zero) if bits[number] else (evidence.zero, evidence.one)
        assert float((evidence.seen - true).norm()) < 1e-3 * float((evidence.seen - false).norm())


def test_weighing_by_the_known_noise_tells_more_than_equal_weights() -> None:
    """mp-dp-naive: R = r_i / r_j is so uneven that a few coordinates carry all the noise; 60 trials, fixed seeds."""
    world = world_of("mp-dp-naive")
    found, bits = game(world, 60)
    tasks = list(found.portions())

    def auc(noise_aware: bool) -> float:
        attack = LikelihoodAudit(noise_aware=noise_aware)
        scores = torch.cat([attack.distinguish(knowledge(world), task).scores for task in tasks])
        return float((scores[bits][:, None] > scores[~bits][None]).double().mean())

    assert auc(True) > auc(False) + 0.1


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", ["server", "server+keys", "server+clients:1"])
@pytest.mark.parametrize("name", ["fedsgd", "mp-dp"])
def test_it_works_under_every_threat_that_it_names(name: str, threat: str) -> None:
    scores, bits = audited(world_of(name), "view", 4, threat=threat)
    assert tells_apart(scores, bits)


def test_a_trial_is_scored_by_itself_and_the_same_every_time() -> None:
    world = world_of("mp-dp")
    found, _ = game(world, 6)
    task = next(found.portions())
    attack, known = LikelihoodAudit(part="view"), knowledge(world)

    def digest(of: AuditTask) -> str:
        return digest_of([blob.hex() for blob in blobs(of.view)])

    before = digest(task)
    torch.manual_seed(1)
    together = attack.distinguish(known, task).scores
    torch.manual_seed(2)
    single = [replace(task, view=replace(task.view, observations=(trial,))) for trial in task.trials]
    assert torch.equal(torch.cat([attack.distinguish(known, one).scores for one in single]), together)
    assert digest(task) == before


def test_a_view_without_gradients_is_not_supported() -> None:
    world = world_of("fedsgd")
    found, _ = game(world, 1, threat="client")
    with pytest.raises(Unsupported, match="neither the victim's gradient"):
        LikelihoodAudit().distinguish(knowledge(world, "client"), next(found.portions()))


def test_a_gradient_without_numbers_is_flagged_and_scores_nothing() -> None:
    world = world_of("fedsgd")
    found, _ = game(world, 2)
    task = next(found.portions())
    for message in task.trials[1].messages:
        if message.kind == "update":
            next(iter(message.payload["gradient"].values())).fill_(torch.nan)
    answer = LikelihoodAudit().distinguish(knowledge(world), task)
    assert answer.flags == ("gradient holds no numbers: 1 of 2 trials",)
    assert answer.scores[1] == 0
    assert answer.scores[0] != 0
