"""Rules for attacks that rebuild images: gradients without numbers, means over clients, any order, no time."""

from __future__ import annotations

from dataclasses import replace

import torch

from leakboard.attacks.base import STOPPED, Attack
from leakboard.contract.checking import Broken, NotApplicable
from leakboard.contract.trials import (
    CONTROL,
    LONG_AGO,
    AskedTask,
    check_form,
    home_of,
    knowledge,
    reconstruction_task,
    run,
    trial_world,
)
from leakboard.contract.worlds import World
from leakboard.core.errors import Unsupported


def check_refuses_a_view_without_gradients(attack: Attack) -> None:
    """Where a view holds no gradient it refuses by `Unsupported`: the cell is then skipped with that reason."""
    world = trial_world(CONTROL)
    task = reconstruction_task(world)
    try:
        run(attack, knowledge(world, "client"), task)
    except Unsupported:
        return
    if task.asked:
        raise Broken("A client's view holds no gradient, and it answered: let `task.problems` refuse.")
    raise NotApplicable("it needs no gradient.")


def check_rebuilds_as_many_images_as_a_mean_has_records(attack: Attack) -> None:
    """Of a mean over clients it rebuilds as many images as there are records behind it, without their labels."""
    if _asks_for_problems(attack) is not trial_world(CONTROL):
        raise NotApplicable("it needs a server that deviates.")
    world = trial_world("secagg")  # its server knows the mean over three clients alone
    task = replace(reconstruction_task(world), known_labels=None)
    check_form(attack, run(attack, knowledge(world, "server"), task), task, world)


def check_a_gradient_without_numbers_spoils_its_own_problem_alone(attack: Attack) -> None:
    """A gradient of NaN spoils its own problem alone, and a flag of `gradient_flags` says so."""
    world = _asks_for_problems(attack)
    known = knowledge(world, "server")
    sound, other = reconstruction_task(world).problems(known)
    broken = {key: torch.full_like(value, torch.nan) for key, value in other.gradient.values.items()}
    spoiled = replace(other, gradient=replace(other.gradient, values=broken))
    asked = AskedTask("first", 0, 2, 1, None, (1, 1), given=(sound, spoiled))
    answer = run(attack, known, asked)
    check_form(attack, answer, asked, world)
    if not any("holds no numbers: 1 of 2" in flag for flag in answer.flags):
        raise Broken("One of two gradients is NaN and no flag says so: return those of `gradient_flags(problems)`.")


def check_the_order_of_problems_changes_nothing(attack: Attack) -> None:
    """The order of its problems changes no image, but for rounding: each has a generator of its own."""
    world = _asks_for_problems(attack)
    known = knowledge(world, "server")
    problems = reconstruction_task(world).problems(known)
    first, second = (
        run(attack, known, AskedTask("first", 0, 2, 1, None, (1, 1), given=order)).images
        for order in (problems, problems[::-1])
    )
    for number, (a, b) in enumerate(zip(first, second[::-1], strict=True)):
        if not torch.allclose(a, b, atol=1e-3):  # sums over problems are in another order: rounding alone differs
            raise Broken(f"Problem {number} has other images in another order: draw from `knowledge.generator_for`.")


def check_a_search_stops_when_time_is_over(attack: Attack) -> None:
    """An attack whose `budget` counts iterations answers at once without time: a flag begins with `STOPPED`."""
    if "iterations" not in attack.budget():
        raise NotApplicable("its `budget` counts no iterations.")
    world = home_of(attack)
    task = reconstruction_task(world)
    late = replace(knowledge(world, "server"), deadline=LONG_AGO)
    answer = run(attack, late, task)
    check_form(attack, answer, task, world)
    if not any(flag.startswith(STOPPED) for flag in answer.flags):
        raise Broken("There was no time and no flag begins with `STOPPED`: ask `knowledge.time_left()`.")


def _asks_for_problems(attack: Attack) -> World:
    """The control's world, for attacks that work there and invert the gradients of `task.problems`."""
    world = home_of(attack)
    if world.defense.name != CONTROL:
        raise NotApplicable("it reads the messages of one kind of scheme.")
    task = reconstruction_task(world)
    run(attack, knowledge(world, "server"), task)
    if not task.asked:
        raise NotApplicable("it does not ask for `task.problems`.")
    return world
