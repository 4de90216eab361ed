"""Secure aggregation by masks that cancel (Bonawitz et al. 2017), for semi-honest parties.

Every round has its own keys. For client u with code vector x_u, in the ring of 64-bit integers:

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)

b_u is the client's own seed, and s_uv comes from an X25519 key agreement. Both b_u and the private key of s_uv are
shared among all clients by Shamir's scheme; t_bar shares reconstruct them. At the end the server asks, for each client,
for the shares of b_u if its y_u arrived, or of its private key if it did not, never both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.building_blocks.summed_codes import SummedCodes
from leakboard.defenses.crypto import shamir
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.crypto.stand_in import Words, to_tensor, to_words, where
from leakboard.federation.party import Message, Party, RoundContext, Step
from leakboard.federation.payload import Payload
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.transcript import Observation

#: bytes of a Shamir share
SHARE = 33


class SecureSum(SummedCodes):
    """The steps of a round of secure aggregation; it tolerates dropouts at any step while enough clients are left."""

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
        """Server: relay the public keys of all clients that are present."""
        me.state.pop("aggregate", None)
        keys = me.received("public_keys")
        me.state["round"] = {"keys": keys}
        me.broadcast(tuple(keys), "all_keys", {"keys": keys})

    def share(self, me: Party) -> None:
        """Client: share its seed and its mask key among all, each share encrypted for its receiver."""
        body = me.received("all_keys").get(SERVER)
        if body is None or not self.enough(me.public, len(body["keys"])):
            return
        own = me.state["round"]
        own["keys"] = body["keys"]
        own["seed"] = me.stream("own mask").bytes(32)
        numbers = {name: _number(name) for name in body["keys"]}
        with me.phase("Key_Gen"):
            indices, needed = sorted(numbers.values()), self.needed(me.public)
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
        for receiver in shares:
            sent = {sender: by[receiver] for sender, by in shares.items()}
            me.send(receiver, "shares_for_you", {"from": sent})

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
        me.send(SERVER, "update", {"masked": to_tensor(masked)})

    def ask(self, me: Party) -> None:
        """Server: tell the clients that sent an update which other clients did."""
        updates = me.received("update")
        own = me.state["round"]
        total = np.zeros(self.code_count(me.public), dtype=np.uint64)
        with me.phase("Agg"):
            for body in updates.values():
                total += to_words(body["masked"])
        own["sum"], own["senders"] = to_tensor(total), sorted(updates)
        me.broadcast(tuple(updates), "survivors", {"senders": sorted(updates)})

    def unmask(self, me: Party) -> None:
        """Client: for each client that shared, its share of the seed if the update arrived, else of the mask key."""
        asked = me.received("survivors").get(SERVER)
        if asked is None or not self.enough(me.public, len(asked["senders"])):
            return
        found: Payload = {}
        with me.phase("Grad_Dec"):
            for name, sealed in me.state["round"]["shares"].items():
                text = _channel(me.state["round"], name, name, me.name, me.context).decrypt(bytes(12), sealed, None)
                found[name] = text[:SHARE] if name in asked["senders"] else text[SHARE:]
        me.send(SERVER, "unmasking", {"shares": found})

    def aggregate(self, me: Party) -> None:
        """Server: rebuild the seeds of the senders and the mask keys of the others, then remove all masks."""
        answers = me.received("unmasking")
        own, needed = me.state["round"], self.needed(me.public)
        if len(answers) < needed:
            return  # too few clients are left to reconstruct anything: the round is lost
        with me.phase("Grad_Dec"):
            total = to_words(own["sum"]).copy()
            for name in own["sharers"]:
                shares = {_number(n): int.from_bytes(b["shares"][name], "little") for n, b in answers.items()}
                secret = shamir.reconstruct(shares, needed)
                if name in own["senders"]:
                    total -= _words(secret, len(total))
                else:
                    total += self._open_masks(me, name, secret, len(total))
        self.conclude(me, total.astype(np.int64), len(own["senders"]))

    def opened(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """With t_bar colluders, who hold shares of every seed and mask key, the server decrypts every update."""
        server = observation.states[SERVER].get("round", {})
        colluders = {n: s["round"] for n, s in observation.states.items() if "shares" in s.get("round", {})}
        if len(colluders) < self.needed(public) or "sharers" not in server:
            return {}
        found = {}
        for message in observation.messages:
            if message.kind == "update" and message.receiver == SERVER:
                codes = self._unmasked(message, observation.context, server, colluders, self.needed(public))
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
        return _without_masks(message, context, seed, private, {n: server["keys"][n] for n in server["sharers"]})

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
        for name in own["senders"]:
            mask = _pair_mask(secret, own["keys"][name]["mask"], me.context, gone, name, count)
            found = found - mask if _number(name) < _number(gone) else found + mask
        return found


def _without_masks(message: Message, context: RoundContext, seed: bytes, private: bytes, keys: Payload) -> Words:
    """A masked update without its owner's seed mask and its masks with the owners of these public keys."""
    owner, codes = message.sender, to_words(message.payload["masked"])
    codes = codes - _words(seed, len(codes))
    for name, public in keys.items():
        if name != owner:
            mask = _pair_mask(private, public["mask"], context, owner, name, len(codes))
            codes = codes - mask if _number(owner) < _number(name) else codes + mask
    return codes


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
