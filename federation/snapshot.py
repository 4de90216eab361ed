"""The state of a federation at a round boundary: to go on from there, or to run its observed rounds again.

All draws are keyed by party and round context, so no generator has a state. Between two rounds a federation consists of
the parties' states and keys, the number of batches that each client took, and what was noted for the outcome.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from leakboard.core.randomness import KEY_BYTES
from leakboard.federation.oracle import Ledger
from leakboard.federation.party import Clock, Party
from leakboard.federation.payload import Packer, Payload, copy_value
from leakboard.federation.transcript import Observation
from leakboard.federation.value_files import MOST_BYTES, Damaged, load_value, read_about, save_value

Count = Annotated[int, Field(ge=0, le=2**62)]
_CLOSED = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
Secret = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]


@dataclass(frozen=True)
class Stage:
    """What a replay cannot compute itself before an observed run of the protocol.

    These are the states and keys of parties that changed since the replay last ran them, and how many batches each
    client had taken.
    """

    __pydantic_config__ = _CLOSED

    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    taken: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplaySnapshot:
    """What it takes to run the observed rounds again: one stage per observed round, and one for the closing steps.

    The closing stage has the number of rounds as its index. `held` are digests of what the replay holds of each party:
    the set-up is run again from the seed, so a party that has not changed since is in no stage. `norms` are those of
    the true models, which a replay compares where bits may differ (`federation.observed`).
    """

    __pydantic_config__ = _CLOSED

    stages: dict[Count, Stage] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    norms: dict[str, dict[str, float]] = field(default_factory=dict)

    def before(self, index: int, parties: Iterable[Party], taken: Mapping[str, int]) -> None:
        """Keep the stage of an observed round: called before its training step."""
        changed = [party for party in parties if self.held.get(party.name) != fingerprint(party)]
        self.stages[index] = Stage(
            {party.name: copy_value(party.state) for party in changed},
            {party.name: copy_value(party.keys) for party in changed},
            dict(taken),
        )

    def after(self, parties: Iterable[Party]) -> None:
        """Note what a replay holds of these parties after it has run them."""
        self.held.update({party.name: fingerprint(party) for party in parties})


def fingerprint(party: Party) -> str:
    """A digest of a party's state and keys."""
    tree = Packer().pack([party.state, party.keys])
    return hashlib.sha256(json.dumps(tree, allow_nan=False).encode()).hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """A federation after `done` rounds (0: after the set-up). Parties without state and keys are left out.

    `notes` belong to whoever saves the snapshot, such as the accuracy curve so far.
    """

    __pydantic_config__ = _CLOSED

    done: Count
    states: dict[str, dict[str, Any]]
    keys: dict[str, dict[str, Any]]
    secrets: dict[str, Secret]
    taken: dict[str, Count]
    client_rounds: Count
    models: dict[Count, dict[str, Tensor]]
    batches: dict[Count, Tensor]
    clocks: dict[str, Clock]
    bytes_by_kind: dict[str, Count]
    ledger: Ledger
    observations: tuple[Observation, ...] = ()
    replay: ReplaySnapshot | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path, about: Mapping[str, str | int]) -> None:
        """Write the snapshot into an existing folder."""
        save_value(folder, self._value(), about)

    def _value(self) -> Payload:
        plain = {name: getattr(self, name) for name in ("done", "states", "keys", "secrets", "taken", "client_rounds")}
        return {
            **plain,
            "models": {str(index): model for index, model in self.models.items()},
            "batches": {str(index): positions for index, positions in self.batches.items()},
            "clocks": {kind: dict(vars(clock)) for kind, clock in self.clocks.items()},
            "bytes_by_kind": dict(self.bytes_by_kind),
            "ledger": dict(vars(self.ledger)),
            "observations": [_observation_value(observation) for observation in self.observations],
            "replay": None if self.replay is None else replay_value(self.replay),
            "notes": self.notes,
        }

    @staticmethod
    def load(folder: Path, expected: Mapping[str, str | int], most: int = MOST_BYTES) -> Snapshot:
        """Read a snapshot about which the same is said; anything else is refused by `Damaged`."""
        check_about(folder, expected)
        found: Snapshot = checked(_SNAPSHOT, load_value(folder, most))
        return found


def _observation_value(observation: Observation) -> Payload:
    parts = ("step", "sender", "receiver", "kind", "payload", "size")
    return {
        "context": asdict(observation.context),
        "messages": [{part: getattr(message, part) for part in parts} for message in observation.messages],
        "states": dict(observation.states),
        "keys": dict(observation.keys),
    }


def replay_value(replay: ReplaySnapshot) -> Payload:
    """What is stored of it."""
    return {
        "stages": {
            str(index): {"states": stage.states, "keys": stage.keys, "taken": stage.taken}
            for index, stage in replay.stages.items()
        },
        "held": replay.held,
        "norms": replay.norms,
    }


def machine() -> dict[str, str | int]:
    """What the bits of a training depend on beside code and seeds: torch, the processor, the threads.

    The instruction set alone is too little: on two processors with AVX-512 the same training had other last bits.
    """
    cpu = f"{torch.backends.cpu.get_cpu_capability()} {_processor()}"
    return {"torch": str(torch.__version__), "cpu": cpu, "threads": torch.get_num_threads()}


@cache
def _processor() -> str:
    """Maker, family and model of the processor, as far as the system says them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    known = [said[name] for name in ("vendor_id", "cpu family", "model") if name in said]
    return " ".join(known) or platform.processor() or platform.machine()


def check_about(folder: Path, expected: Mapping[str, str | int]) -> None:
    """Refuse a folder about which something else is said, before its tensors are read."""
    about = read_about(folder)
    for name, value in expected.items():
        if about.get(name) != value:
            raise Damaged(f"It was made with another {name}: {about.get(name)!r:.80} instead of {value!r:.80}.")


def checked(form: TypeAdapter[Any], value: Any) -> Any:
    """A stored value in this form."""
    try:
        return form.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise Damaged(f"The entry '{where}' of a snapshot is wrong: {first['msg']}.") from None


_SNAPSHOT: TypeAdapter[Any] = TypeAdapter(Snapshot)
REPLAY: TypeAdapter[Any] = TypeAdapter(ReplaySnapshot)
