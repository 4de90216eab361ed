"""Rules for attacks that play the distinguishing game of differential privacy."""

from __future__ import annotations

from dataclasses import replace

import torch

from leakboard.attacks.base import AuditAttack
from leakboard.contract.checking import Broken
from leakboard.contract.trials import CONTROL, audit_task, check_form, knowledge, trial_world


def check_tells_worlds_apart_without_a_defense(attack: AuditAttack) -> None:
    """Without a defense the trial of the second world gets the higher score, and every trial gets one."""
    world = trial_world(CONTROL)
    task = audit_task(world)
    answer = attack.distinguish(knowledge(world, "server"), task)
    check_form(attack, answer, task, world)
    if len(answer.scores) != len(task.trials):
        raise Broken(f"There are {len(task.trials)} trials; scores: {len(answer.scores)}.")
    first, second = answer.scores.tolist()
    if not first < second:
        raise Broken(f"The trial of the first world has the score {first:g}, that of the second {second:g}.")


def check_a_trial_is_scored_by_itself(attack: AuditAttack) -> None:
    """A trial gets the same score whatever other trials are asked with it: the bound is for independent ones."""
    world = trial_world(CONTROL)
    task, known = audit_task(world), knowledge(world, "server")
    together = attack.distinguish(known, task).scores
    for number, trial in enumerate(task.trials):
        alone = attack.distinguish(known, replace(task, view=replace(task.view, observations=(trial,)))).scores
        if not torch.allclose(alone, together[number : number + 1], rtol=1e-5):
            scores = f"{float(alone[0]):g} alone and {float(together[number]):g} beside another"
            raise Broken(f"Trial {number} has the score {scores}.")
