"""How attacks are tried: in which federation, on which tasks, and how their answers are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from leakboard.attacks.base import (
    Attack,
    AuditTask,
    ExtractionTask,
    Inversion,
    Knowledge,
    KnownMembership,
    MembershipTask,
    ReconstructionTask,
)
from leakboard.contract.checking import Broken, NotApplicable
from leakboard.contract.small import small
from leakboard.contract.worlds import NoWorld, World, blobs, make_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import digest_of
from leakboard.defenses.base import AGGREGATE, Defense
from leakboard.federation.settings import VICTIM
from leakboard.federation.view import ACTIVE
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.goals.question import AttackFailed
from leakboard.leaderboard.goals.questions.audit import AuditQuestion
from leakboard.leaderboard.goals.questions.extraction import ExtractionQuestion
from leakboard.leaderboard.goals.questions.membership import MembershipQuestion
from leakboard.leaderboard.goals.questions.reconstruction import ReconstructionQuestion

Task = ReconstructionTask | MembershipTask | ExtractionTask | AuditTask

#: where attacks are tried, in this order: without a defense, on those of the plugin files, on schemes of ours
CONTROL = "fedsgd"
SCHEMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mp-dp", {}),
    ("mp", {}),
    ("hybridalpha", {"keys": "shared", "sample_values": 0}),
    ("ddp-mf", {}),
)
#: a deadline that was over when the machine started, so no clock decides anything
LONG_AGO = 0.0


@cache
def trial_world(name: str, *parameters: tuple[str, Any]) -> World:
    """The small federation of a defense, by name; made once."""
    plugin = registry.load("defense", name)
    assert issubclass(plugin, Defense)
    return make_world(small(plugin, **dict(parameters)), model_parameters={"hidden": [8]})


@cache
def deviating_world() -> World:
    """The control with a server that deviates, on a network that lets it; made once."""
    plugin = registry.load("defense", CONTROL)
    assert issubclass(plugin, Defense)
    deviating = plugin().deviate()
    assert deviating is not None
    return make_world(deviating, model_parameters={"hidden": [8], "bias": True})


def homes() -> Iterator[World]:
    """The federations in which an attack may work, the control first."""
    yield trial_world(CONTROL)
    outside = registry.loaded_files()
    for name, entry in registry.entries("defense").items():
        if entry["file"] in outside:
            yield trial_world(name)
    for name, parameters in SCHEMES:
        yield trial_world(name, *parameters.items())
    yield deviating_world()


#: where each attack works, by its class, its parameters and the plugin files that were loaded
_homes: dict[tuple[object, ...], World] = {}


def home_of(attack: Attack) -> World:
    """The first federation in which an attack does not refuse to work; looked for once."""
    key = (type(attack), json.dumps(attack.parameters(), sort_keys=True), *registry.loaded_files())
    if key not in _homes:
        _homes[key] = _find_home(attack)
    return _homes[key]


def _find_home(attack: Attack) -> World:
    refusals = []
    for world in homes():
        try:
            answer_to(attack, world)
        except (Unsupported, NoWorld) as refusal:
            refusals.append(str(refusal))
        except Exception:
            return world  # it works here, and does it wrong: the rules say so
        else:
            return world
    raise NotApplicable(f"it refuses every federation of the contract: {refusals[0]}.")


def knowledge(world: World, threat: str) -> Knowledge:
    """What an attacker of this threat knows about a finished federation."""
    return Knowledge(world.view(threat), world.defense, world.auxiliary, 5)


def first_threat(attack: Attack) -> str:
    """The first threat that an attack names, for three clients."""
    return full_threat(attack.threats[0])


def full_threat(threat: str) -> str:
    """A threat as a view needs it: with the number of colluding clients."""
    return f"{threat}:1" if threat == "server+clients" else threat


def answer_to(attack: Attack, world: World, threat: str = "", **changes: Any) -> Any:
    """The answer of an attack in a world, unchecked; `changes` replace what the attacker knows."""
    known = replace(knowledge(world, threat or first_threat(attack)), **changes)
    return run(attack, known, task_for(attack, world))


def checked_answer(attack: Attack, world: World, threat: str = "", **changes: Any) -> Any:
    """The answer, in the right form; `Broken` where it has another."""
    answer = answer_to(attack, world, threat, **changes)
    check_form(attack, answer, task_for(attack, world), world)
    return answer


def goal_of(attack: Attack) -> Goal:
    """The goal of an attack."""
    goal = registry.create("goal", attack.goal)
    assert isinstance(goal, Goal)
    return goal


def check_form(attack: Attack, answer: Any, task: Task, world: World) -> None:
    """Whether an answer has the form that the harness accepts."""
    try:
        goal_of(attack).accept(answer, task, world.outcome.public)
    except AttackFailed as wrong:
        raise Broken(f"The harness refuses the answer: {wrong}.") from None


def run(attack: Attack, known: Knowledge, task: Task) -> Any:
    """Let an attack answer a task of its goal, as the goal calls it."""
    return goal_of(attack).call(attack, known, task)


# --- tasks -------------------------------------------------------------------------------------------

#: the worlds have three rounds; the last one is observed
EXTRACTION = ExtractionTask("last", 2)


def task_for(attack: Attack, world: World) -> Task:
    """A task of the attack's goal, or of the one of ours that it inherits from, in a world."""
    goal = goal_of(attack)
    if isinstance(goal, ExtractionQuestion):
        return EXTRACTION
    if isinstance(goal, AuditQuestion):
        return audit_task(world)
    if isinstance(goal, ReconstructionQuestion):
        return reconstruction_task(world)
    if isinstance(goal, MembershipQuestion):
        return membership_task(world)
    raise NotApplicable(f"the contract has no task for the goal '{attack.goal}'.")


def membership_task(world: World) -> MembershipTask:
    """The first records that nobody trained on are told, half of them falsely as members; the rest is asked."""
    told, asked = torch.arange(10), torch.arange(10, len(world.unseen))
    known = KnownMembership(world.unseen.select(told), told < 5)
    return MembershipTask(world.unseen.select(asked), known)


def reconstruction_task(world: World) -> AskedTask:
    """The victim's probes of the first round, one record each; of a mean over clients, all its records."""
    labels = tuple(torch.split(world.shards[VICTIM].labels[: world.observe.targets], 1))
    found = [
        reading.gradients for reading in world.defense.interpret(world.view("server")) if reading.context.probe == 0
    ]
    gradient = found[0].get(VICTIM) or found[0].get(AGGREGATE)
    size = gradient.records if gradient is not None else 1
    return AskedTask("first", 0, world.observe.targets, 1, labels, (size,) * world.observe.targets)


def audit_task(world: World) -> AuditTask:
    """Probe i runs on the victim's record i, so trial 0 is of world 0 and trial 1 of world 1; nobody says so."""
    first, second = (world.shards[VICTIM].select(torch.tensor([i])) for i in range(2))
    view = world.view("server")
    return AuditTask((first, second), replace(view, observations=view.of_kind("probe", 2)))


@dataclass(frozen=True)
class AskedTask(ReconstructionTask):
    """A task that notes whether an attack asked for its problems; `given` ones stand in for those of the view."""

    given: tuple[Inversion, ...] = field(default=(), kw_only=True)
    asked: list[bool] = field(default_factory=list, kw_only=True)

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        """The given problems, or those that the view offers."""
        self.asked.append(True)
        return self.given or super().problems(knowledge)


# --- comparing answers -------------------------------------------------------------------------------


def fingerprint(known: Knowledge) -> str:
    """A digest of all that a view holds."""
    return digest_of([blob.hex() for blob in blobs(known.view)])


def tensors_of(answer: Any) -> list[torch.Tensor]:
    """The tensors of an answer of any goal."""
    if hasattr(answer, "model"):
        return [answer.model[name] for name in sorted(answer.model)]
    if hasattr(answer, "images"):
        return list(answer.images)
    return [answer.scores, answer.decisions] if hasattr(answer, "decisions") else [answer.scores]


def same(first: Any, second: Any) -> bool:
    """Whether two answers are equal, bit by bit."""
    one, two = tensors_of(first), tensors_of(second)
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def threats_of(attack: Attack) -> list[str]:
    """The threats that an attack names, but for the server that deviates: the control has no such strategy."""
    return [full_threat(threat) for threat in attack.threats if threat != ACTIVE]
