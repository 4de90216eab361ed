"""A rule about snapshots: what a party remembers from round to round is in its state or its keys."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakboard.contract.checking import Broken
from leakboard.contract.worlds import World, world_of
from leakboard.defenses.base import Defense
from leakboard.federation.replay import differences
from leakboard.federation.rounds import Federation
from leakboard.federation.snapshot import Snapshot, machine


def check_goes_on_from_a_snapshot_of_every_round(defense: Defense) -> None:
    """It goes on from files after every round as if it had not been stopped: nothing hides outside of the states."""
    world = world_of(defense, record_all=True)
    with tempfile.TemporaryDirectory() as scratch:
        saved = Path(scratch)

        def save(done: int, take: Callable[[], Snapshot]) -> None:
            (saved / str(done)).mkdir()
            take().save(saved / str(done), machine())

        _federation(world, at_boundary=save).run()
        # from the last round back to the first: what another object or the module remembers is never what it was
        for done in reversed(range(world.outcome.public.total_rounds + 1)):
            _compare(world, done, _goes_on(world, saved / str(done)))


def _federation(world: World, **given: Any) -> Federation:
    made = type(world.defense).model_validate(world.defense.parameters())
    return Federation(made, world.outcome.public, world.shards, world.observe, world.seed, record_all=True, **given)


def _goes_on(world: World, folder: Path) -> Federation:
    federation = _federation(world)
    federation.restore(Snapshot.load(folder, machine()))
    federation.run()
    return federation


def _compare(world: World, done: int, federation: Federation) -> None:
    """Refuse anything that was sent or held after the snapshot and differs from the run that was not stopped."""
    for then, now in zip(world.outcome.transcript.observations, federation.observations, strict=True):
        parts = ((then.states, now.states), (then.keys, now.keys))
        sent = [[[m.sender, m.receiver, m.kind, m.payload] for m in one.messages] for one in (then, now)]
        for first, second in (*parts, (sent[0], sent[1])):
            for path in differences(first, second):
                where = f"round {then.context.round} ({then.context.kind})"
                raise Broken(
                    f"Restored after round {done}, it did something else in {where}, at {path[:80]}: "
                    "keep what lasts longer than a round in `me.state`."
                )
