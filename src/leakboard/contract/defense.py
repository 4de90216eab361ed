"""Rules for every defense: it trains, it repeats itself, and its honest reading is whole."""

from __future__ import annotations

import torch

from leakboard.contract.checking import Broken
from leakboard.contract.worlds import NoWorld, make_world, network_for, world_of
from leakboard.defenses.base import Defense
from leakboard.federation.task import task_of


def check_a_federation_runs(defense: Defense) -> None:
    """A federation of three clients runs under it from the first round to the last."""
    try:
        world_of(defense)
    except NoWorld as no:
        raise Broken(no.why) from None


def check_trains_a_finite_model(defense: Defense) -> None:
    """It trains a finite model with the names and shapes of the network."""
    outcome = world_of(defense).outcome
    expected = task_of(outcome.public).initial(0)
    odd = sorted(outcome.model.keys() ^ expected.keys())
    if odd:
        raise Broken(f"The model and the network differ in '{odd[0]}': one of them has no such value.")
    for name, value in outcome.model.items():
        if value.shape != expected[name].shape:
            given = tuple(value.shape)
            raise Broken(f"'{name}' must have the shape {tuple(expected[name].shape)}; given: {given}.")
        if not bool(value.isfinite().all()):
            raise Broken(f"'{name}' of the trained model holds values that are not finite.")


def check_the_same_seed_gives_the_same_run(defense: Defense) -> None:
    """The same seed gives the same run, bit by bit: all randomness comes from `me.stream`."""
    world = world_of(defense)
    torch.manual_seed(1)
    torch.rand(3)  # whoever draws from the global state draws something else now
    again = make_world(defense, model_parameters=network_for(defense))
    differ = [name for name, value in world.outcome.model.items() if not torch.equal(value, again.outcome.model[name])]
    if differ:
        raise Broken(f"Two runs with one seed trained different models: '{differ[0]}' differs.")


def check_the_reading_is_whole(defense: Defense) -> None:
    """`interpret` gives one reading per observation, in the same order."""
    for threat in ("server", "client"):
        world = world_of(defense)
        view, found = world.view(threat), [reading.context for reading in world.readings(threat)]
        if found != [observation.context for observation in view.observations]:
            raise Broken(f"The view '{threat}' has {len(view.observations)} observations; readings: {len(found)}.")


def check_readings_have_the_form_of_gradients(defense: Defense) -> None:
    """Every gradient that `read` finds has the names and shapes of the network's parameters."""
    world = world_of(defense)
    expected = task_of(world.outcome.public).initial(0)
    names = set(task_of(world.outcome.public).parameter_names)
    for reading in world.readings("server+keys"):
        for owner, gradient in reading.gradients.items():
            if gradient.values.keys() != names:
                odd = sorted(gradient.values.keys() ^ names)[0]
                raise Broken(f"The gradient of '{owner}' and the network differ in '{odd}'.")
            for name, value in gradient.values.items():
                if value.shape != expected[name].shape:
                    wanted, given = tuple(expected[name].shape), tuple(value.shape)
                    raise Broken(f"'{name}' of '{owner}' must have the shape {wanted}; given: {given}.")
