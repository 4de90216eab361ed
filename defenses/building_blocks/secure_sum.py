"""Secure aggregation by masks that cancel (Bonawitz et al. 2017), for semi-honest parties.

Every round has its own keys. For client u with code vector x_u, in the ring of integers modulo 2^b (b = 64 unless the
defense says otherwise):

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)

b_u is the client's own seed, and s_uv comes from an X25519 key agreement. Both b_u and the private key of s_uv are
shared among all clients by Shamir's scheme; t_bar shares reconstruct them. At the end the server asks, for each client,
for the shares of b_u if its y_u arrived, or of its private key if it did not, never both.

With `graph: sparse` (Bell et al. 2020, SecAgg+) clients share masks and secrets with their neighbours on a random ring
only, so that a client's work grows with the logarithm of the number of clients (`crypto.sparse_graph`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from pydantic import Field
from torch import Tensor

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.building_blocks.summed_codes import SummedCodes
from leakboard.defenses.crypto import shamir
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.crypto.sparse_graph import Degree, degree, ring_neighbours
from leakboard.defenses.crypto.stand_in import Words, where
from leakboard.federation.party import Message, Party, RoundContext, Step
from leakboard.federation.payload import Payload
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.transcript import Observation

#: bytes of a Shamir share
SHARE = 33


class SecureSum(SummedCodes):
    """The steps of a round of secure aggregation; it tolerates dropouts at any step while enough clients are left."""

    graph: Literal["complete", "sparse"] = Field(
        "complete", description="who masks with whom: everybody, or a few neighbours on a random ring (SecAgg+)"
    )
    missing: float = Field(0.05, ge=0, lt=1, description="graph: sparse: the share of clients that may drop out")

    def ring_degree(self, public: Public) -> Degree | None:
        """Neighbours and threshold of the sparse graph; None for the complete one, or if only that one is safe.

        Colluders are the K - t clients that `honest` leaves.
        """
        clients = public.training.per_round
        if self.graph == "complete":
            return None
        return degree(clients, (clients - self.least_honest(public)) / clients, self.missing)

    def threshold(self, public: Public) -> int:
        """How many shares open a client's secret: t_bar, or the threshold among its neighbours."""
        found = self.ring_degree(public)
        return self.needed(public) if found is None else found.threshold

    def graph_claims(self, public: Public) -> dict[str, Any]:
        """How many clients open a secret, and among how many neighbours where the graph is sparse."""
        found = self.ring_degree(public)
        sizes = {"clients_to_unmask": self.threshold(public)}
        return sizes if found is None else sizes | {"neighbours": found.neighbours}

    def ring_bits(self) -> int:
        """b: masked codes and their sum are known modulo 2^b only; where b < 64, `decoded` reduces them."""
        return 64

    def protocol(self) -> Sequence[Step]:
        """Keys, shares, the model, masked updates, the list of survivors, their answers, the sum."""
        distribute, update, aggregate = super().protocol()
        return (
            Step("advertise", "client", self.advertise),
            Step("relay_keys", SERVER, self.relay_keys),
            Step("share", "client", self.share),
            Step("relay_shares", SERVER, self.relay_shares),
            distribute,
            update,
            Step("ask", SERVER, self.ask),
            Step("unmask", "client", self.unmask),
            aggregate,
        )

    def advertise(self, me: Party) -> None:
        """Client: two fresh key pairs, one for the masks and one to talk to other clients through the server."""
        me.state["round"] = {}
        with me.phase("Key_Gen"):
            public: Payload = {}
            for purpose in ("mask", "channel"):
                private = X25519PrivateKey.from_private_bytes(me.stream(f"{purpose} key").bytes(32))
                me.state["round"][purpose] = private.private_bytes_raw()
                public[purpose] = private.public_key().public_bytes_raw()
        me.send(SERVER, "public_keys", public)

    def relay_keys(self, me: Party) -> None:
        """Server: relay the public keys of all clients that are present, or to each those of its neighbours."""
        me.state.pop("aggregate", None)
        keys, found = me.received("public_keys"), self.ring_degree(me.public)
        me.state["round"] = {"keys": keys}
        if found is None:
            me.broadcast(tuple(keys), "all_keys", {"keys": keys, "clients": len(keys)})
            return
        names = sorted(keys, key=_number)
        order = [names[place] for place in me.stream("ring").permutation(len(names))]
        me.state["round"] |= {"order": order, "neighbours": found.neighbours}
        for place, name in enumerate(order):
            near = ring_neighbours(order, place, found.neighbours)
            me.send(name, "all_keys", {"keys": {other: keys[other] for other in near}, "clients": len(keys)})

    def share(self, me: Party) -> None:
        """Client: share its seed and its mask key among the owners of these keys, each share sealed for its owner."""
        body, needed = me.received("all_keys").get(SERVER), self.threshold(me.public)
        if body is None or not self.enough(me.public, body["clients"]) or len(body["keys"]) < needed:
            return
        own = me.state["round"]
        own["keys"] = body["keys"]
        own["seed"] = me.stream("own mask").bytes(32)
        numbers = {name: _number(name) for name in body["keys"]}
        with me.phase("Key_Gen"):
            indices = sorted(numbers.values())
            seeds = shamir.share(own["seed"], needed, indices, me.stream("seed shares"))
            masks = shamir.share(own["mask"], needed, indices, me.stream("mask shares"))
            sealed: Payload = {}
            for name, number in numbers.items():
                text = b"".join(int(s[number]).to_bytes(SHARE, "little") for s in (seeds, masks))
                sealed[name] = _channel(own, name, me.name, name, me.context).encrypt(bytes(12), text, None)
        me.send(SERVER, "shares", {"to": sealed})

    def relay_shares(self, me: Party) -> None:
        """Server: relay the encrypted shares to their receivers."""
        shares = {sender: body["to"] for sender, body in me.received("shares").items()}
        me.state["round"]["sharers"] = sorted(shares)
        sent: dict[str, Payload] = {receiver: {} for receiver in shares}
        for sender, by in shares.items():
            for receiver, sealed in by.items():
                if receiver in sent:
                    sent[receiver][sender] = sealed
        for receiver, received in sent.items():
            me.send(receiver, "shares_for_you", {"from": received})

    def update(self, me: Party) -> None:
        """Client: mask the codes of its update and send them."""
        received = me.received("shares_for_you").get(SERVER)
        if "round" in me.state and received is None:
            return  # too few clients took part in the sharing
        codes = self.codes(me)
        if "round" not in me.state:
            self.send_simulated(me, codes)
            return
        assert received is not None
        own = me.state["round"]
        own["shares"] = received["from"]
        with me.phase("Grad_Enc"):
            masked = codes.astype(np.uint64) + _words(own["seed"], len(codes))
            for name in received["from"]:
                if name != me.name:
                    mask = _pair_mask(own["mask"], own["keys"][name]["mask"], me.context, me.name, name, len(codes))
                    masked = masked + mask if _number(me.name) < _number(name) else masked - mask
        me.send(SERVER, "update", {"masked": _in_ring(masked, self.ring_bits())})

    def ask(self, me: Party) -> None:
        """Server: tell the clients that sent an update which other clients (or neighbours) did."""
        updates = me.received("update")
        own = me.state["round"]
        total = np.zeros(self.code_count(me.public), dtype=np.uint64)
        with me.phase("Agg"):
            for body in updates.values():
                total += _from_ring(body["masked"])
        own["sum"], own["senders"] = _in_ring(total, self.ring_bits()), sorted(updates)
        if "order" not in own:
            me.broadcast(tuple(updates), "survivors", {"senders": sorted(updates), "clients": len(updates)})
            return
        for name in updates:
            near = sorted(updates.keys() & _near(own, name))
            me.send(name, "survivors", {"senders": near, "clients": len(updates)})

    def unmask(self, me: Party) -> None:
        """Client: for each client that shared, its share of the seed if the update arrived, else of the mask key."""
        asked = me.received("survivors").get(SERVER)
        if asked is None or not self.enough(me.public, asked["clients"]):
            return
        found: Payload = {}
        with me.phase("Grad_Dec"):
            for name, sealed in me.state["round"]["shares"].items():
                text = _channel(me.state["round"], name, name, me.name, me.context).decrypt(bytes(12), sealed, None)
                found[name] = text[:SHARE] if name in asked["senders"] else text[SHARE:]
        me.send(SERVER, "unmasking", {"shares": found})

    def aggregate(self, me: Party) -> None:
        """Server: rebuild the seeds of the senders and the mask keys of the others, then remove all masks."""
        own, needed = me.state["round"], self.threshold(me.public)
        shares: dict[str, dict[int, int]] = {name: {} for name in own["sharers"]}
        for sender, body in me.received("unmasking").items():
            for name, share in body["shares"].items():
                shares[name][_number(sender)] = int.from_bytes(share, "little")
        if not shares or min(map(len, shares.values())) < needed:
            return  # too few clients are left to reconstruct everything: the round is lost
        with me.phase("Grad_Dec"):
            total = _from_ring(own["sum"])
            for name in own["sharers"]:
                secret = shamir.reconstruct(shares[name], needed)
                if name in own["senders"]:
                    total -= _words(secret, len(total))
                else:
                    total += self._open_masks(me, name, secret, len(total))
        self.conclude(me, total.astype(np.int64), len(own["senders"]))

    def counted(self, observation: Observation) -> set[str]:
        """Those whose masked updates the server added up."""
        return set(observation.states[SERVER]["round"]["senders"])

    def opened(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """With enough colluders who hold shares of a client's seed and mask key, the server decrypts its update."""
        server = observation.states[SERVER].get("round", {})
        colluders = {n: s["round"] for n, s in observation.states.items() if "shares" in s.get("round", {})}
        if "sharers" not in server:
            return {}
        found, needed = {}, self.threshold(public)
        for message in observation.messages:
            if message.kind == "update" and message.receiver == SERVER:
                holders = {name: own for name, own in colluders.items() if message.sender in own["shares"]}
                if len(holders) >= needed:
                    codes = self._unmasked(message, observation.context, server, holders, needed)
                    found[message.sender] = codes.astype(np.int64)
        return found

    def _unmasked(
        self, message: Message, context: RoundContext, server: Payload, colluders: dict[str, Payload], needed: int
    ) -> Words:
        """One client's codes, from the shares that its colluding neighbours hold."""
        owner = message.sender
        parts: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for name, own in colluders.items():
            text = _channel(own, owner, owner, name, context).decrypt(bytes(12), own["shares"][owner], None)
            parts[0][_number(name)] = int.from_bytes(text[:SHARE], "little")
            parts[1][_number(name)] = int.from_bytes(text[SHARE:], "little")
        seed, private = (shamir.reconstruct(part, needed) for part in parts)
        others = _near(server, owner) & set(server["sharers"])
        return _without_masks(message, context, seed, private, {name: server["keys"][name] for name in others})

    def own_codes(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """The codes that a client masked itself."""
        rounds = {n: s["round"] for n, s in observation.states.items() if "shares" in s.get("round", {})}
        found = {}
        for message in observation.messages:
            if message.kind == "update" and message.receiver == SERVER and message.sender in rounds:
                own = rounds[message.sender]
                others = {name: own["keys"][name] for name in own["shares"]}
                codes = _without_masks(message, observation.context, own["seed"], own["mask"], others)
                found[message.sender] = codes.astype(np.int64)
        return found

    def _open_masks(self, me: Party, gone: str, secret: bytes, count: int) -> Words:
        """The sum of the senders' pairwise masks with a client that dropped out, with the sign that removes it."""
        found = np.zeros(count, dtype=np.uint64)
        own = me.state["round"]
        for name in _near(own, gone) & set(own["senders"]):
            mask = _pair_mask(secret, own["keys"][name]["mask"], me.context, gone, name, count)
            found = found - mask if _number(name) < _number(gone) else found + mask
        return found


def _without_masks(message: Message, context: RoundContext, seed: bytes, private: bytes, keys: Payload) -> Words:
    """A masked update without its owner's seed mask and its masks with the owners of these public keys."""
    owner, codes = message.sender, _from_ring(message.payload["masked"])
    codes = codes - _words(seed, len(codes))
    for name, public in keys.items():
        if name != owner:
            mask = _pair_mask(private, public["mask"], context, owner, name, len(codes))
            codes = codes - mask if _number(owner) < _number(name) else codes + mask
    return codes


def _near(server: Payload, name: str) -> set[str]:
    """The clients that a client shares masks with: its neighbours, or all."""
    if "order" not in server:
        return set(server["keys"])
    return set(ring_neighbours(server["order"], server["order"].index(name), server["neighbours"]))


def _in_ring(words: Words, bits: int) -> Tensor:
    """Words modulo 2^b, in the smallest whole type that holds them; everything above b bits is gone."""
    kind = next(kind for size, kind in ((16, np.int16), (32, np.int32), (64, np.int64)) if bits <= size)
    reduced = words & np.uint64(2**bits - 1)
    return torch.from_numpy(reduced.astype(kind))


def _from_ring(tensor: Tensor) -> Words:
    """64-bit words that are equal to these values modulo 2^b."""
    return tensor.numpy().astype(np.int64).astype(np.uint64)


def _number(name: str) -> int:
    """A client's number for masks and shares, from 1."""
    return int(name.partition(":")[2]) + 1


def _words(seed: bytes, count: int) -> Words:
    """PRG: uniform 64-bit words."""
    return Stream(seed).words(count)


def _agreed(private: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def _pair_mask(private: bytes, public: bytes, context: RoundContext, first: str, second: str, count: int) -> Words:
    """PRG(s_uv), the same from both sides, bound to this run of the protocol."""
    pair = sorted((_number(first), _number(second)))
    return _words(derive_key(_agreed(private, public), "mask", *pair, where(context)), count)


def _channel(own: Payload, other: str, sender: str, receiver: str, context: RoundContext) -> ChaCha20Poly1305:
    """The cipher from a sender to a receiver, one of which is this client; used once, so one nonce suffices."""
    shared = _agreed(own["channel"], own["keys"][other]["channel"])
    return ChaCha20Poly1305(derive_key(shared, "channel", sender, receiver, where(context)))
