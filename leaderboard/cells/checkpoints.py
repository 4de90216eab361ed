"""Snapshots of a running training: after a kill, the same command goes on from the last one.

They are beside the folder of the training and are removed once that is complete. Nothing about them is in a key.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError

from leakboard.core.errors import UserError
from leakboard.core.files import sweep, whole_folder
from leakboard.federation.payload import Payload
from leakboard.federation.rounds import Federation
from leakboard.federation.snapshot import Snapshot, machine
from leakboard.federation.view import seeable

#: so many snapshots of a training are kept: if the last one cannot be read, there is one before it
KEPT = 2


def checkpoint_folder(training_folder: Path) -> Path:
    """The folder for the snapshots of a training, beside the folder that appears when it is complete."""
    return training_folder.with_name(f"{training_folder.name}.snapshots")


def remove_checkpoints(training_folder: Path) -> None:
    """Remove the snapshots of a training that is complete."""
    shutil.rmtree(checkpoint_folder(training_folder), ignore_errors=True)


class Checkpoints:
    """The snapshots of one training, at most one per `seconds`; 0: one at every round boundary."""

    def __init__(
        self,
        training_folder: Path,
        key: str,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
    ) -> None:
        self.folder, self.seconds, self.now, self.say = checkpoint_folder(training_folder), seconds, now, say
        self.about: dict[str, str | int] = {"kind": "resume", "training": key, **machine()}
        self.last = now()
        self.used: list[Path] = []  # the snapshots that this run went on from or wrote, oldest first

    def resume(self, federation: Federation, read: Callable[[Payload], None]) -> bool:
        """Put a new federation into the last state that can be used; whether there was one.

        `read` takes the notes of a snapshot and raises a `UserError` where they are wrong. A refused snapshot stays
        until this run has written one: until then another machine may still use it.
        """
        with suppress(OSError):
            sweep(self.folder)
        for folder in self._newest_first():
            try:
                snapshot = Snapshot.load(folder, self.about)
                read(snapshot.notes)
                federation.restore(snapshot)  # last: it changes nothing if it refuses
            except UserError as why:
                self.say(f"The snapshot '{folder.name}' is not used: {why}")
            else:
                self.used = [folder]
                return True
        return False

    def note(self, done: int, take: Callable[[], Snapshot], notes: Callable[[], Payload]) -> None:
        """At a round boundary: save a snapshot if one is due. A disk that is full does not end the training."""
        if self.now() - self.last < self.seconds:
            return
        snapshot = take()
        # as in the training's folder: what no view holds is not stored
        seen = tuple(seeable(observation) for observation in snapshot.observations)
        target = self.folder / f"round-{done:07}"
        try:
            with whole_folder(target) as folder:
                replace(snapshot, observations=seen, notes=notes()).save(folder, self.about)
            self.used = [*self.used, target][-KEPT:]
            # not the highest rounds: a snapshot that was refused may be of a later round than this one
            for old in set(self._newest_first()) - set(self.used):
                shutil.rmtree(old, ignore_errors=True)
        except (OSError, SafetensorError) as error:  # safetensors has its own error for a failed write
            why = getattr(error, "strerror", None) or error
            self.say(f"No snapshot could be written after round {done}: {why}.")
        self.last = self.now()

    def _newest_first(self) -> Iterator[Path]:
        return iter(sorted(self.folder.glob("round-*"), reverse=True))
