"""All messages, and what each party held, in the observed rounds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from leakboard.federation.party import Message, RoundContext
from leakboard.federation.payload import Packer, Payload, unpack

#: the files of a stored transcript; the first one is written last
TRANSCRIPT_FILES = ("transcript.json", "transcript.safetensors")


@dataclass(frozen=True)
class Observation:
    """One observed run of the protocol: its messages, and the parties' states and keys at its end.

    `oracle` holds the answers of `federation.oracle` to each client, only for replay: it is in no view and in no file.
    """

    context: RoundContext
    messages: tuple[Message, ...]
    states: Mapping[str, Payload]
    keys: Mapping[str, Payload]
    oracle: Mapping[str, list[Tensor]] = field(default_factory=dict)

    def limited(self, parties: Iterable[str], key_holders: Iterable[str]) -> Observation:
        """What these parties hold of it: messages that they sent or received, their states, and those keys."""
        inside, holders = set(parties), set(key_holders)
        return Observation(
            self.context,
            tuple(m for m in self.messages if m.sender in inside or m.receiver in inside),
            {party: state for party, state in self.states.items() if party in inside},
            {party: keys for party, keys in self.keys.items() if party in holders and keys},
        )


@dataclass(frozen=True)
class Transcript:
    """The observations in chronological order."""

    observations: tuple[Observation, ...]

    def save(self, folder: Path) -> None:
        """Write `transcript.json` and `transcript.safetensors`; equal tensors are stored once."""
        packer = Packer()
        text = self._text(packer)
        save_file(packer.tensors, str(folder / "transcript.safetensors"))
        (folder / "transcript.json").write_text(text)

    def digest(self) -> str:
        """A digest of everything that `save` would write, by content."""
        return hashlib.sha256(self._text(Packer()).encode()).hexdigest()

    def _text(self, packer: Packer) -> str:
        return json.dumps([_pack_observation(one, packer) for one in self.observations], allow_nan=False)

    @staticmethod
    def load(
        folder: Path,
        keep: Callable[[Observation], Observation] | None = None,
        wanted: Callable[[RoundContext], bool] = lambda context: True,
    ) -> Transcript:
        """Read a transcript: the `wanted` contexts, and only the tensors that `keep` leaves in them."""
        trees = json.loads((folder / "transcript.json").read_text())
        observations = [o for o in map(_raw_observation, trees) if wanted(o.context)]
        if keep is not None:
            observations = [keep(observation) for observation in observations]
        read: dict[str, Tensor] = {}
        with safe_open(str(folder / "transcript.safetensors"), framework="pt") as file:

            def tensor(name: str) -> Tensor:
                if name not in read:
                    read[name] = file.get_tensor(name)
                return read[name]

            return Transcript(tuple(_filled(observation, tensor) for observation in observations))


def _pack_observation(observation: Observation, packer: Packer) -> dict[str, Any]:
    o = observation.context
    payloads = {id(m.payload): m.payload for m in observation.messages}  # a broadcast is one object: pack it once
    packed = {key: packer.pack(payload) for key, payload in payloads.items()}
    return {
        "context": [o.round, o.probe, o.kind, list(o.participants), o.batch_size],
        "messages": [
            [m.step, m.sender, m.receiver, m.kind, m.size, packed[id(m.payload)]] for m in observation.messages
        ],
        "states": {party: packer.pack(state) for party, state in observation.states.items()},
        "keys": {party: packer.pack(keys) for party, keys in observation.keys.items()},
    }


def _raw_observation(tree: dict[str, Any]) -> Observation:
    """An observation whose payloads are still JSON trees."""
    round_, probe, kind, participants, batch_size = tree["context"]
    messages = tuple(Message(step, a, b, kind_, body, size) for step, a, b, kind_, size, body in tree["messages"])
    return Observation(
        RoundContext(round_, probe, kind, tuple(participants), batch_size), messages, tree["states"], tree["keys"]
    )


def _filled(raw: Observation, tensor: Callable[[str], Tensor]) -> Observation:
    return Observation(
        raw.context,
        tuple(Message(m.step, m.sender, m.receiver, m.kind, unpack(m.payload, tensor), m.size) for m in raw.messages),
        {party: unpack(state, tensor) for party, state in raw.states.items()},
        {party: unpack(keys, tensor) for party, keys in raw.keys.items()},
    )
