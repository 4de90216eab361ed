"""Does a party act only on its own knowledge? Run it again without the others and compare.

A party is replayed in a process in which no other party ever ran: the others are played back from the log. If it used
anything besides its inbox, its state and its own randomness the first time (a global variable, a class attribute, a
file), then what it sends or holds is now different.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from leakboard.datasets.base import LabelledImages
from leakboard.federation.outcome import Outcome
from leakboard.federation.payload import Payload, raw_bytes
from leakboard.federation.rounds import Federation, Scheme
from leakboard.federation.script import Script
from leakboard.federation.settings import ObservedRounds
from leakboard.federation.transcript import Observation, Transcript

#: at most this many differing paths are reported, each truncated to this length
MOST_PATHS, LONGEST_PATH = 1000, 2000


def differences(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """The paths at which two values differ: in structure, in type, or in any bit of a tensor."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted({*first, *second}):
            if key in first and key in second:
                yield from differences(first[key], second[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(first, list) and isinstance(second, list):
        for index in range(max(len(first), len(second))):
            if index < min(len(first), len(second)):
                yield from differences(first[index], second[index], f"{path}/{index}")
            else:
                yield f"{path}/{index}"
    elif not _same_leaf(first, second):
        yield path


def _same_leaf(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        alike = first.shape == second.shape and first.dtype == second.dtype
        return alike and raw_bytes(first.cpu()) == raw_bytes(second.cpu())
    both_nan = isinstance(first, float) and isinstance(second, float) and first != first and second != second
    return type(first) is type(second) and (both_nan or bool(first == second))


def _own_part(observations: tuple[Observation, ...], party: str) -> list[Payload]:
    """What the party sent and held, observation by observation."""
    return [
        {
            "sent": [[m.receiver, m.kind, m.payload] for m in o.messages if m.sender == party],
            "state": o.states.get(party),
            "keys": o.keys.get(party),
        }
        for o in observations
    ]


def _replayed(parcel: bytes, party: str, pipe: Connection) -> None:
    """Child process: run one party against the script and send back the differences."""
    make, public, transcript, secret, shard, observe, seed, threads = pickle.loads(parcel)  # from our own parent
    torch.set_num_threads(threads)  # sums over another number of threads differ in their last bits
    try:
        run = Federation(
            make(),
            public,
            {party: shard} if shard is not None else {},
            observe,
            seed,
            record_all=True,
            script=Script(frozenset({party}), transcript),
            secrets={party: secret},
        )
        run.run()
        now, then = _own_part(tuple(run.observations), party), _own_part(transcript.observations, party)
        _send(pipe, list(differences(then, now)))
    except Exception as error:
        _send(pipe, [f"{party} cannot run on its own: {type(error).__name__}: {error}"])


def _send(pipe: Connection, paths: list[str]) -> None:
    """Send the differences as JSON: at most the first `MOST_PATHS` paths, and the beginning of long ones."""
    pipe.send_bytes(json.dumps([path[:LONGEST_PATH] for path in paths[:MOST_PATHS]]).encode())


def _receive(pipe: Connection, party: str) -> list[str]:
    """The differences. A defense ran in the process that sent them, so they are read as JSON and never unpickled."""
    try:
        found = json.loads(pipe.recv_bytes(12 * MOST_PATHS * LONGEST_PATH))
    except (EOFError, OSError):
        return [f"{party} crashed when run on its own"]
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        return [f"{party} sent no list of differences when run on its own"]
    return found


def covert_channels(
    make: Callable[[], Scheme],
    outcome: Outcome,
    shards: Mapping[str, LabelledImages],
    observe: ObservedRounds,
    seed: int,
) -> dict[str, list[str]]:
    """The parties that behave differently without the others, with the paths that differ; empty if there are none.

    `outcome` must come from a run with `record_all=True`; `make` builds the defense again in the new process.
    """
    # a fork server, if available: a process in which no party ever ran, without importing torch each time
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context(
        "forkserver" if "forkserver" in methods and sys.platform != "darwin" else "spawn"
    )
    multiprocessing.set_forkserver_preload(["torch", "leakboard.federation.replay"])
    found: dict[str, list[str]] = {}
    transcript = Transcript(outcome.transcript.observations)
    for party, secret in outcome.secrets.items():
        receiver, sender = context.Pipe(duplex=False)
        parts = (make, outcome.public, transcript, secret, shards.get(party), observe, seed, torch.get_num_threads())
        # pickled by value here: torch would pass every tensor as a file descriptor, and there are too many
        child = context.Process(target=_replayed, args=(pickle.dumps(parts), party, sender))  # type: ignore[attr-defined]
        child.start()
        sender.close()
        paths = _receive(receiver, party)
        receiver.close()  # ends a child that is still writing
        child.join()
        if paths:
            found[party] = paths
    return found
