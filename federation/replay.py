"""Does a party act on its own knowledge alone? Run it again without the others and compare.

A party is replayed in a process where nobody else ever ran: the others are played back from the
log. If it reached anything but its inbox, its state and its own randomness the first time (a global
variable, a class attribute, a file), what it sends or holds now is not the same.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from datasets.base import LabelledImages
from federation.payload import Payload, leaves
from federation.rounds import Federation, Outcome, Scheme, Script
from federation.settings import Watch
from federation.transcript import Observation, Transcript


def differences(first: Any, second: Any) -> Iterator[str]:
    """The paths at which two values differ, tensors compared bit for bit."""
    left, right = dict(leaves(first)), dict(leaves(second))
    for path in sorted({*left, *right}):
        a, b = left.get(path), right.get(path)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            same = a.shape == b.shape and a.dtype == b.dtype and bool((a == b).logical_or(a.isnan() & b.isnan()).all())
        else:
            same = type(a) is type(b) and a == b
        if not same:
            yield path


def _own_part(observations: tuple[Observation, ...], party: str) -> list[Payload]:
    """What the party sent and held, observation by observation."""
    return [
        {
            "sent": [[m.receiver, m.kind, m.payload] for m in o.messages if m.sender == party],
            "state": o.states.get(party),
        }
        for o in observations
    ]


def _replayed(make: Callable[[], Scheme], outcome_parts: tuple[Any, ...], party: str, pipe: Connection) -> None:
    """Child process: run one party against the script and send back what it differs in."""
    public, transcript, secret, shard, watch, seed = outcome_parts
    try:
        run = Federation(
            make(),
            public,
            {party: shard} if shard is not None else {},
            watch,
            seed,
            record_all=True,
            script=Script(frozenset({party}), transcript),
            secrets={party: secret},
        )
        run.run()
        now, then = _own_part(tuple(run.observations), party), _own_part(transcript.observations, party)
        pipe.send(list(differences(then, now)))
    except Exception as error:
        pipe.send([f"{party} cannot run on its own: {type(error).__name__}: {error}"])


def covert_channels(
    make: Callable[[], Scheme],
    outcome: Outcome,
    shards: Mapping[str, LabelledImages],
    watch: Watch,
    seed: int,
) -> dict[str, list[str]]:
    """The parties that do something else when the others are away, with the paths that differ; empty when clean.

    `outcome` must come from a run with `record_all=True`; `make` builds the defense anew in a spawned process.
    """
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[str]] = {}
    transcript = Transcript(outcome.transcript.observations)
    for party, secret in outcome.secrets.items():
        receiver, sender = context.Pipe(duplex=False)
        parts = (outcome.public, transcript, secret, shards.get(party), watch, seed)
        child = context.Process(target=_replayed, args=(make, parts, party, sender))
        child.start()
        sender.close()
        try:
            paths = receiver.recv()
        except EOFError:
            paths = [f"{party} crashed when run on its own"]
        child.join()
        if paths:
            found[party] = paths
    return found
