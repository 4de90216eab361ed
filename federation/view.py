"""Threat models and views: what a set of parties holds, computed from the log and never declared by a defense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leakboard.core.errors import UserError
from leakboard.datasets.base import LabelledImages
from leakboard.federation.settings import SERVER, VICTIM, Public, client_name
from leakboard.federation.transcript import Observation, Transcript

#: the threat of a server that deviates: the defense is run again with that strategy
ACTIVE = "server:active"
THREATS = ("server", "server+keys", "server+clients:m", ACTIVE, "client")


@dataclass(frozen=True)
class Threat:
    """A threat model: the attacking parties, and whose decryption keys they have in addition."""

    name: str
    parties: tuple[str, ...]
    all_keys: bool = False
    active: bool = False


def parse_threat(name: str, clients: int) -> Threat:
    """The threat of that name in a federation of this many clients. The victim is never an attacker."""
    others = tuple(client_name(index) for index in range(1, clients))
    if name == "server":
        return Threat(name, (SERVER,))
    if name == "server+keys":
        return Threat(name, (SERVER,), all_keys=True)
    if name == ACTIVE:
        return Threat(name, (SERVER,), active=True)
    if name == "client":
        if not others:
            raise UserError("The threat 'client' needs at least 2 clients, because client 0 is the victim; given: 1.")
        return Threat(name, others[:1])
    prefix, _, count = name.partition(":")
    if prefix == "server+clients" and count.isdecimal():
        if not 0 < int(count) <= len(others):
            raise UserError(f"The threat '{name}' needs m from 1 to {len(others)} with {clients} clients.")
        return Threat(name, (SERVER, *others[: int(count)]))
    raise UserError(f"There is no threat '{name}': allowed are {', '.join(THREATS)}.")


@dataclass(frozen=True)
class View:
    """What the attacking parties hold at the end, without any reference to the federation, other parties, or the truth.

    `secrets` are the parties' own random keys (all their draws follow from them). `holdings` are the records that they
    own.
    """

    threat: str
    parties: tuple[str, ...]
    public: Public
    observations: tuple[Observation, ...]
    secrets: Mapping[str, bytes]
    holdings: Mapping[str, LabelledImages]

    def of_kind(self, kind: str, round_index: int | None = None) -> tuple[Observation, ...]:
        """The observations of one kind (`train`, `probe`, `final`), and of one round if it is given."""
        return tuple(o for o in self.observations if o.context.kind == kind and round_index in (None, o.context.round))


def limiter(threat: Threat) -> Callable[[Observation], Observation]:
    """The function that restricts an observation to what this threat sees."""

    def limit(observation: Observation) -> Observation:
        holders = observation.keys if threat.all_keys else threat.parties
        return observation.limited(threat.parties, holders)

    return limit


def seeable(observation: Observation) -> Observation:
    """The observation without what no threat's view holds: the victim and third parties never attack.

    Their states are removed, and what they sent to each other; decryption keys stay (`server+keys`).
    """
    named = {name for m in observation.messages for name in (m.sender, m.receiver)} | set(observation.states)
    attackers = [n for n in named if n == SERVER or (n != VICTIM and n.startswith("client:"))]
    return observation.limited(attackers, observation.keys)


def make_view(
    transcript: Transcript,
    threat: Threat,
    public: Public,
    secrets: Mapping[str, bytes],
    holdings: Mapping[str, LabelledImages],
) -> View:
    """The view of a threat: everything is restricted to its parties first."""
    if VICTIM in threat.parties:
        raise ValueError("the victim cannot attack itself")
    limit = limiter(threat)
    return View(
        threat.name,
        threat.parties,
        public,
        tuple(limit(observation) for observation in transcript.observations),
        {party: secrets[party] for party in threat.parties},
        {party: holdings[party] for party in threat.parties if party in holdings},
    )
