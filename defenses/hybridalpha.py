"""The paper's baseline HybridAlpha."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from leakboard.defenses.building_blocks.encrypted import Encrypted
from leakboard.defenses.building_blocks.noisy_share import NoisyShare
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.crypto.functional import (
    MODP_2048,
    Decryptor,
    FunctionalKey,
    SlotEncryptor,
    SlotKey,
    functional_key,
    pads,
    slot_key,
)
from leakboard.defenses.crypto.integers import from_blob, to_blob
from leakboard.defenses.crypto.stand_in import client_key, pad, pad_sum, to_tensor, to_words, where
from leakboard.federation.party import Party, ProtocolError, RoundContext, Step
from leakboard.federation.payload import Payload
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.transcript import Observation

AUTHORITY = "authority"
#: bytes of a group element, and of one z of a functional key (a sum of up to 2^16 pads of 256 bits)
ELEMENT, SUM = 256, 34
Pairs = list[tuple[int, int]]


@lru_cache(maxsize=2)
def decryptor_of(bound: int) -> Decryptor:
    """The tables for sums up to the bound; they are public, so a process may cache them."""
    return Decryptor(bound, MODP_2048)


class HybridAlpha(Encrypted, NoisyShare):
    """HybridAlpha (our reconstruction): noise as in tp-smc, under functional encryption with a key authority.

    Clients encrypt 16-bit codes by multi-input functional encryption for inner products (2048-bit group). The authority
    gives the server a key for the plain sum if at least t clients are in it. The server finds the sums by discrete
    logarithms. The model is sent in plain. `keys: shared`, the scheme as specified, reuses a client's slot key for all
    coordinates and rounds, so one key decrypts every mixture of ciphertexts (mix-and-match). `keys: per-slot` has a
    separate pad for each coordinate and round.
    """

    name: ClassVar[str] = "hybridalpha"
    citation: ClassVar[str] = (
        "Xu et al., HybridAlpha, AISec 2019; Abdalla et al., CRYPTO 2018, ePrint 2017/972 (our reconstruction)"
    )
    claim: ClassVar[str] = "The server learns only the noisy sum; the authority refuses keys for too few clients."
    code_bits: ClassVar[int] = 16
    takes_local_steps: ClassVar[bool] = True

    keys: Literal["per-slot", "shared"] = Field(
        "per-slot", description="shared: one slot key for all coordinates and rounds, as the scheme is specified"
    )

    def label(self, context: RoundContext) -> str | None:
        """What pads are bound to: this run of the protocol, or nothing."""
        return where(context) if self.keys == "per-slot" else None

    def bound(self, clients: int) -> int:
        """The largest sum of signed codes of this many clients."""
        return clients * ((1 << (self.code_bits - 1)) - 1)

    # --- steps ---------------------------------------------------------------------------------

    def third_parties(self) -> tuple[str, ...]:
        """The authority that makes all keys."""
        return (AUTHORITY,)

    def setup(self) -> Sequence[Step]:
        """The initial model, then the key of each client."""
        return (
            *super().setup(),
            Step("deal", AUTHORITY, self.deal),
            Step("keep_key", "client", self.keep_key),
            Step("prepare", SERVER, self.prepare),
        )

    def protocol(self) -> Sequence[Step]:
        """Distribute, encrypt, request a functional key, receive it, decrypt."""
        distribute, update, aggregate = super().protocol()
        return (
            distribute,
            update,
            Step("request", SERVER, self.request),
            Step("grant", AUTHORITY, self.grant),
            aggregate,
        )

    def deal(self, me: Party) -> None:
        """Authority, once: make a key for every client and keep all of them."""
        master: Payload = {}
        if self.crypto == "sampled":
            me.keys["sealing_master"] = me.stream("sealing").bytes(32)
        for number, name in enumerate(me.public.clients):
            body: Payload = {}
            if self.encrypts:
                with me.phase("Key_Gen"):
                    key = slot_key(me.stream("slot keys"))
                body["slot_key"] = master[name] = {"w": int(key.w), "seed": key.seed}
            if self.crypto == "sampled":
                body["sealing_key"] = client_key(me.keys["sealing_master"], number)
            me.send(name, "encryption_key", body)
        me.keys["master"] = master

    def keep_key(self, me: Party) -> None:
        """Client, once: keep its key."""
        me.state.update(me.expect("encryption_key", AUTHORITY))

    def prepare(self, me: Party) -> None:
        """Server, once: build its tables before anything is timed."""
        if self.encrypts:
            with me.phase("Key_Gen"):
                decryptor_of(self.bound(me.public.training.per_round))

    def update(self, me: Party) -> None:
        """Client: encrypt the codes of its update and send them."""
        codes = self.codes(me)
        if "slot_key" not in me.state and "sealing_key" not in me.state:
            self.send_simulated(me, codes)
        elif self.crypto == "real":
            with me.phase("Grad_Enc"):
                body: Payload = {"ciphertexts": self._encrypted(me, codes)}
            me.send(SERVER, "update", body)
        else:
            body = {"sealed": self.sealed(me, codes, self.label(me.context))}
            me.skip("Grad_Enc", len(codes))
            if self.is_sampled(me.context):
                part = codes[: self.sample_size(me)]
                with me.sample("Grad_Enc", len(part)):
                    body["sample"] = self._encrypted(me, part)
            me.send(SERVER, "update", body, size=2 * ELEMENT * len(codes))

    def _encrypted(self, me: Party, codes: Integers) -> bytes:
        """Pairs (t, c) of all codes, concatenated; a code enters the exponent with its sign."""
        key = SlotKey(**me.state["slot_key"])
        values = [int(code) - self._zero for code in codes]
        found = SlotEncryptor(key).encrypt(values, pads(key, self.label(me.context), len(codes)), me.stream("enc"))
        return to_blob((element for pair in found for element in pair), ELEMENT)

    @property
    def _zero(self) -> int:
        """The code of zero."""
        return (1 << (self.code_bits - 1)) - 1

    def request(self, me: Party) -> None:
        """Server: ask the authority for the key of the plain sum over the clients that sent an update."""
        me.state.pop("aggregate", None)
        me.state["received"] = me.received("update")
        if me.state["received"]:
            weights = dict.fromkeys(me.state["received"], 1)
            sampled = all("sample" in body for body in me.state["received"].values())
            me.send(AUTHORITY, "request", {"weights": weights, "sampled": sampled})

    def grant(self, me: Party) -> None:
        """Authority: refuse sums over fewer than t clients or with unequal weights, else send the functional key."""
        asked = me.received("request").get(SERVER)
        if asked is None:
            return
        weights: Mapping[str, int] = asked["weights"]
        if not self.allowed(me.public, weights):
            me.send(SERVER, "refusal", {"reason": f"a key needs at least {self.least_honest(me.public)} clients"})
            return
        count, label = self.code_count(me.public), self.label(me.context)
        coordinates = count if label is not None else 1
        wire = coordinates * SUM + len(weights) * 32
        if self.crypto == "real":
            with me.phase("Key_Gen"):
                body = self._packed_key(me, weights, coordinates)
            me.send(SERVER, "functional_key", body)
            return
        keys = [client_key(me.keys["sealing_master"], me.public.clients.index(name)) for name in weights]
        body = {"pads": to_tensor(pad_sum(keys, label, coordinates))}
        me.skip("Key_Gen", coordinates)
        if asked["sampled"]:
            part = min(self.sample_size(me), coordinates)
            with me.sample("Key_Gen", part):
                body["sample"] = self._packed_key(me, weights, part)
        me.send(SERVER, "functional_key", body, size=wire)

    def allowed(self, public: Public, weights: Mapping[str, int]) -> bool:
        """The authority's inference prevention: known clients, equal weights of 1, and enough of them."""
        known = all(name in public.clients for name in weights)
        return known and set(weights.values()) == {1} and self.enough(public, len(weights))

    def _packed_key(self, me: Party, weights: Mapping[str, int], count: int) -> Payload:
        keys = {me.public.clients.index(name): SlotKey(**me.keys["master"][name]) for name in weights}
        found = functional_key(keys, dict.fromkeys(keys, 1), self.label(me.context), count)
        return {"d": {str(slot): int(d) for slot, d in found.d.items()}, "z": to_blob(found.z, SUM)}

    def aggregate(self, me: Party) -> None:
        """Server: decrypt the sums, take the step."""
        updates: dict[str, Payload] = me.state.pop("received", {})
        if not updates or me.received("refusal"):
            return
        key = me.expect("functional_key", AUTHORITY)
        count = self.code_count(me.public)
        if self.crypto == "real":
            with me.phase("Grad_Dec"):
                totals = self.decrypted(me.public, key, {n: b["ciphertexts"] for n, b in updates.items()})
        else:
            words = to_words(self.sealed_sum(me, list(updates.values()))) - to_words(key["pads"])
            totals = words.astype(np.int64)
            me.skip("Grad_Dec", count)
            if "sample" in key:
                part = self.sample_size(me)
                with me.sample("Grad_Dec", part):
                    real = self.decrypted(me.public, key["sample"], {n: b["sample"] for n, b in updates.items()})
                if not np.array_equal(real, totals[:part]):
                    raise ProtocolError("the sample decrypts to a different sum than the stand-in cipher")
        self.conclude(me, totals, len(updates))

    def decrypted(self, public: Public, key: Payload, blobs: Mapping[str, bytes]) -> Integers:
        """Server: sums of codes from ciphertexts by client and a functional key; it decrypts any mixture that fits."""
        pairs = {public.clients.index(name): _pairs(blob) for name, blob in blobs.items()}
        count = len(next(iter(pairs.values())))
        z = from_blob(key["z"], SUM)
        full = FunctionalKey(
            {int(slot): d for slot, d in key["d"].items()},
            tuple(z if len(z) == count else z * count),
            dict.fromkeys(pairs, 1),
        )
        sums = decryptor_of(self.bound(public.training.per_round)).decrypt(full, pairs)
        return np.array([int(total) + len(pairs) * self._zero for total in sums], dtype=np.int64)

    # --- reading -------------------------------------------------------------------------------

    def counted(self, observation: Observation) -> set[str]:
        """Those whose sum the server asked the authority to open."""
        return {name for m in observation.messages if m.kind == "request" for name in m.payload["weights"]}

    def opened(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """The authority's master key decrypts every single update."""
        held = observation.keys.get(AUTHORITY)
        if held is None:
            return {}
        if self.crypto == "real":
            return self._opened_by(observation, public, {n: SlotKey(**key) for n, key in held["master"].items()})
        label, count = self.label(observation.context), self.code_count(public)
        found = {}
        for message in observation.messages:
            if message.kind == "update" and message.receiver == SERVER:
                own = client_key(held["sealing_master"], public.clients.index(message.sender))
                found[message.sender] = (to_words(message.payload["sealed"]) - pad(own, label, count)).astype(np.int64)
        return found

    def own_codes(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """The codes that a client encrypted itself, decrypted with its own key."""
        if self.crypto == "sampled":
            return self.unsealed(observation, public, self.label(observation.context))
        keys = {n: SlotKey(**s["slot_key"]) for n, s in observation.states.items() if "slot_key" in s}
        return self._opened_by(observation, public, keys)

    def _opened_by(self, observation: Observation, public: Public, keys: Mapping[str, SlotKey]) -> dict[str, Integers]:
        """The codes in the real ciphertexts of the clients whose slot keys are known."""
        label, count = self.label(observation.context), self.code_count(public)
        found = {}
        for message in observation.messages:
            if message.kind == "update" and message.receiver == SERVER and message.sender in keys:
                name, slot = message.sender, public.clients.index(message.sender)
                key = functional_key({slot: keys[name]}, {slot: 1}, label, count)
                packed: Payload = {"d": {str(slot): key.d[slot]}, "z": to_blob(key.z, SUM)}
                found[name] = self.decrypted(public, packed, {name: message.payload["ciphertexts"]})
        return found

    def claims(self, public: Public) -> dict[str, Any]:
        """What the noise guarantees, and the sizes of the cryptography."""
        found = super().claims(public)
        if self.keys == "shared" and "epsilon_round_by_threat" in found:
            for by_threat in (found["epsilon_round_by_threat"], found["epsilon_total_by_threat"]):
                by_threat["server"] = by_threat["server+keys"]
            found |= {"dp_holds": False, "reason": "one key opens every mixture of ciphertexts: single updates leak"}
        sizes = {"group_bits": MODP_2048.p.bit_length(), "keys": self.keys, "crypto": self.crypto}
        return found | sizes


def _pairs(blob: bytes) -> Pairs:
    """The pair (t, c) of every value."""
    elements = from_blob(blob, ELEMENT)
    return list(zip(elements[::2], elements[1::2], strict=True))
