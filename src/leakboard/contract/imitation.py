"""Rules about the optional hooks by which attacks imitate a scheme."""

from __future__ import annotations

import torch

from leakboard.contract.checking import Broken
from leakboard.contract.worlds import world_of
from leakboard.defenses.base import Defense


def check_simulate_gives_a_clients_message(defense: Defense) -> None:
    """`simulate` gives what a client's message holds, from public settings alone, and repeats itself.

    Where a message is sealed, an outsider without keys gets what is inside: a gradient in the model's shapes.
    """
    world = world_of(defense)
    received = next(m.payload for o in world.view("client").observations for m in o.messages if m.kind == "model")
    batch = world.unseen.select(torch.arange(4))
    first, second = (
        defense.simulate(world.outcome.public, received, batch.images, batch.labels, seed=3) for _ in range(2)
    )
    updates = (m for o in world.view("server").observations for m in o.messages if m.kind == "update")
    sent = next(m.payload for m in updates if m.sender == "client:0")
    is_open = "gradient" in sent
    if is_open and first.keys() != sent.keys():
        raise Broken(f"A message has the parts {sorted(sent)}; simulated: {sorted(first)}.")
    expected = sent["gradient"] if is_open else world.outcome.model
    for name, value in first["gradient"].items():
        if not torch.equal(value, second["gradient"][name]):
            raise Broken(f"Two simulations with one seed differ in '{name}'.")
        if value.shape != expected[name].shape:
            raise Broken(f"'{name}' must have the shape {tuple(expected[name].shape)}; given: {tuple(value.shape)}.")
