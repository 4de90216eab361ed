"""Sums under threshold encryption: t_bar clients together decrypt the sum; the server alone decrypts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
from pydantic import Field

from leakboard.core.errors import UserError
from leakboard.defenses.building_blocks.encrypted import Encrypted
from leakboard.defenses.crypto import shamir, threshold
from leakboard.defenses.crypto.fixed_point import Integers, Packing
from leakboard.defenses.crypto.integers import from_blob, to_blob
from leakboard.defenses.crypto.stand_in import client_key, pad, pad_sum, to_tensor, to_words, where
from leakboard.defenses.crypto.threshold import Encryptor, PublicKey, Share
from leakboard.federation.party import Party, ProtocolError, Step
from leakboard.federation.payload import Payload
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.transcript import Observation

DEALER = "dealer"


@lru_cache(maxsize=4)
def encryptor_of(public: PublicKey) -> Encryptor:
    """The table of powers for a public key; it is public, so a process keeps one for all its clients."""
    return Encryptor(public)


class ThresholdSum(Encrypted):
    """Threshold Damgaard-Jurik encryption of packed codes, with a trusted dealer for the keys.

    In a round, clients send Enc(codes). The server multiplies the ciphertexts and sends Enc(sum) to t_bar = K - t + 1
    clients, each of which returns a partial decryption. The server combines them. t is the minimum number of honest
    clients. Decryptors send no proofs, because all parties follow the protocol. The
    first t_bar senders are asked to decrypt; if one of them drops out then, the round is lost.
    """

    code_bits: ClassVar[int]

    key_bits: int = Field(
        2048, ge=128, le=8192, multiple_of=8, description="size of the modulus; less than 2048 is only for tests"
    )

    def check(self, public: Public) -> None:
        """A code must fit into a plaintext. All clients hold shares, so all must take part: t_bar counts K clients."""
        super().check(public)
        clients, each = public.training.clients, public.training.per_round
        if each < clients:
            raise UserError(
                f"The defense '{self.name}' needs all clients in every round, because all hold key shares; "
                f"given: {each} of {clients}."
            )
        try:
            self.packing(public)
        except ValueError as reason:
            raise UserError(f"The defense '{self.name}' cannot pack: {reason}.") from None

    def packing(self, public: Public) -> Packing:
        """How codes are packed for the clients of a round."""
        return Packing(self.code_bits, public.training.per_round, self.key_bits - 2)

    # --- steps ---------------------------------------------------------------------------------

    def third_parties(self) -> tuple[str, ...]:
        """The trusted dealer of keys."""
        return (DEALER,)

    def setup(self) -> Sequence[Step]:
        """The initial model, then the keys."""
        return (
            *super().setup(),
            Step("deal", DEALER, self.deal),
            Step("keep_key", SERVER, self.keep_key),
            Step("keep_share", "client", self.keep_share),
        )

    def protocol(self) -> Sequence[Step]:
        """Distribute, encrypt, combine, decrypt in parts, aggregate; the dealer decrypts a stand-in cipher."""
        distribute, update, aggregate = super().protocol()
        opening = (Step("open", DEALER, self.open),) if self.crypto == "sampled" else ()
        combine, decrypt = Step("combine", SERVER, self.combine), Step("decrypt", "client", self.decrypt)
        return (distribute, update, combine, decrypt, *opening, aggregate)

    def deal(self, me: Party) -> None:
        """Dealer, once: make the keys, send the public key to all and one share to every client.

        It keeps something only under `crypto: sampled`: the master key of the stand-in cipher, to decrypt sums.
        """
        clients = me.public.clients
        needed = self.needed(me.public)
        shares: Sequence[Share] = ()
        key: Payload = {}
        if self.encrypts:
            with me.phase("Key_Gen"):
                public, shares = threshold.generate(me.stream("key"), self.key_bits, len(clients), needed)
            key = public.to_payload()
        me.broadcast((SERVER, *clients), "public_key", {"key": key})
        master, parts = b"", {}
        if self.crypto == "sampled":
            master = me.state["sealing_master"] = me.stream("sealing").bytes(32)
            parts = shamir.share(master, needed, range(1, len(clients) + 1), me.stream("sealing shares"))
        for number, name in enumerate(clients):
            body: Payload = {"index": number + 1}
            if shares:
                body["share"] = int(shares[number].value)
            if master:
                body |= {"sealing_share": int(parts[number + 1]), "sealing_key": client_key(master, number)}
            me.send(name, "key_share", body)

    def keep_key(self, me: Party) -> None:
        """Server, once: store the public key."""
        me.state["public_key"] = me.expect("public_key", DEALER)["key"]

    def keep_share(self, me: Party) -> None:
        """Client, once: store the public key and its own share."""
        me.state["public_key"] = me.expect("public_key", DEALER)["key"]
        body = me.expect("key_share", DEALER)
        me.state["sealing_key"] = body.pop("sealing_key", b"")
        me.keys.update(body)
        if me.state["public_key"]:
            with me.phase("Key_Gen"):
                encryptor_of(PublicKey.from_payload(me.state["public_key"]))  # here, not in the first encryption

    def update(self, me: Party) -> None:
        """Client: encrypt the codes of its update and send them."""
        codes = self.codes(me)
        if "public_key" not in me.state:
            self.send_simulated(me, codes)
            return
        count = self.packing(me.public).plaintexts(len(codes))
        if self.crypto == "real":
            with me.phase("Grad_Enc"):
                body: Payload = {"ciphertexts": self._encrypted(me, codes)}
            me.send(SERVER, "update", body)
            return
        body = {"sealed": self.sealed(me, codes, where(me.context))}
        me.skip("Grad_Enc", count)
        if self.is_sampled(me.context):
            part = codes[: self.sample_size(me)]
            with me.sample("Grad_Enc", self.packing(me.public).plaintexts(len(part))):
                body["sample"] = self._encrypted(me, part)
        me.send(SERVER, "update", body, size=self._wire(count))

    def _encrypted(self, me: Party, codes: Integers) -> bytes:
        """Ciphertexts of packed codes, concatenated."""
        public = PublicKey.from_payload(me.state["public_key"])
        encryptor, stream = encryptor_of(public), me.stream("encryption")
        return to_blob(
            (encryptor.encrypt(plain, stream) for plain in self.packing(me.public).pack(codes)), public.width
        )

    def _wire(self, ciphertexts: int) -> int:
        """Bytes of this many real ciphertexts."""
        return ciphertexts * self.key_bits // 4

    def combine(self, me: Party) -> None:
        """Server: multiply the ciphertexts, ask t_bar clients to decrypt the product."""
        me.state.pop("aggregate", None)
        updates = me.received("update")
        senders, helpers = tuple(updates), tuple(updates)[: self.needed(me.public)]
        me.state["senders"] = list(senders)
        if not self.enough(me.public, len(senders)):
            return  # too few clients are left: the round is lost
        bodies = list(updates.values())
        if self.crypto == "real":
            with me.phase("Agg"):
                me.state["product"] = self._product(me, [body["ciphertexts"] for body in bodies])
            me.broadcast(helpers, "sum", {"ciphertexts": me.state["product"]})
            return
        me.state["sealed_sum"] = self.sealed_sum(me, bodies)
        count = self.packing(me.public).plaintexts(self.code_count(me.public))
        me.skip("Agg", count)
        body: Payload = {}
        if all("sample" in one for one in bodies):
            blobs = [one["sample"] for one in bodies]
            with me.sample("Agg", len(blobs[0]) // self._wire(1)):
                body["sample"] = self._product(me, blobs)
        me.broadcast(helpers, "sum", body, size=self._wire(count))
        me.send(DEALER, "opening", {"senders": list(senders)}, size=0)

    def _product(self, me: Party, blobs: Sequence[bytes]) -> bytes:
        """The homomorphic sums, ciphertext by ciphertext."""
        public = PublicKey.from_payload(me.state["public_key"])
        columns = zip(*(from_blob(blob, public.width) for blob in blobs), strict=True)
        return to_blob((threshold.add(public, column) for column in columns), public.width)

    def decrypt(self, me: Party) -> None:
        """Client, if asked: a partial decryption of the sum."""
        asked = me.received("sum").get(SERVER)
        if asked is None:
            return
        if self.crypto == "real":
            with me.phase("Grad_Dec"):
                values = self._partial(me, asked["ciphertexts"])
            me.send(SERVER, "partial", {"index": me.keys["index"], "values": values})
            return
        count = self.packing(me.public).plaintexts(self.code_count(me.public))
        me.skip("Grad_Dec", count)
        body: Payload = {"index": me.keys["index"]}
        if "sample" in asked:
            with me.sample("Grad_Dec", len(asked["sample"]) // self._wire(1)):
                body["values"] = self._partial(me, asked["sample"])
        me.send(SERVER, "partial", body, size=self._wire(count) + 1)
        me.send(DEALER, "approval", {}, size=0)

    def _partial(self, me: Party, blob: bytes) -> bytes:
        public = PublicKey.from_payload(me.state["public_key"])
        share = Share(me.keys["index"], me.keys["share"])
        return to_blob(threshold.partial(public, share, from_blob(blob, public.width)), public.width)

    def open(self, me: Party) -> None:
        """Dealer, `sampled` only: with t_bar approvals, send the server the sum of the pads, as decryption would."""
        asked = me.received("opening").get(SERVER)
        if asked is None or len(me.received("approval")) < self.needed(me.public):
            return
        keys = [client_key(me.state["sealing_master"], int(name.partition(":")[2])) for name in asked["senders"]]
        pads = pad_sum(keys, where(me.context), self.code_count(me.public))
        me.send(SERVER, "opened", {"pads": to_tensor(pads)}, size=0)

    def aggregate(self, me: Party) -> None:
        """Server: combine the partial decryptions, take the step."""
        partials = {body["index"]: body for body in me.received("partial").values()}
        if len(partials) < self.needed(me.public):
            return
        if self.crypto == "real":
            with me.phase("Grad_Dec"):
                totals = self._combined(me, partials, self.code_count(me.public))
            me.state.pop("product")
        else:
            pads = me.expect("opened", DEALER)["pads"]
            totals = (to_words(me.state.pop("sealed_sum")) - to_words(pads)).astype(np.int64)
            me.skip("Grad_Dec", self.packing(me.public).plaintexts(len(totals)))
            if all("values" in body for body in partials.values()):
                count = self.sample_size(me)
                with me.sample("Grad_Dec", self.packing(me.public).plaintexts(count)):
                    real = self._combined(me, partials, count)
                if not np.array_equal(real, totals[:count]):
                    raise ProtocolError("the sample decrypts to a different sum than the stand-in cipher")
        self.conclude(me, totals, len(me.state["senders"]))

    def _combined(self, me: Party, partials: dict[int, Payload], count: int) -> Integers:
        public = PublicKey.from_payload(me.state["public_key"])
        parts = {index: from_blob(body["values"], public.width) for index, body in partials.items()}
        return self.packing(me.public).unpack(threshold.combine(public, parts), count)

    # --- reading -------------------------------------------------------------------------------

    def counted(self, observation: Observation) -> set[str]:
        """Those whose ciphertexts the server multiplied."""
        return set(observation.states[SERVER]["senders"])

    def opened(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """t_bar shares decrypt every single update."""
        held = {keys["index"]: keys for keys in observation.keys.values() if "index" in keys}
        if len(held) < self.needed(public):
            return {}
        updates = {m.sender: m.payload for m in observation.messages if m.kind == "update" and m.receiver == SERVER}
        count = self.code_count(public)
        if self.crypto == "real":
            key = PublicKey.from_payload(observation.states[SERVER]["public_key"])
            shares = [Share(index, keys["share"]) for index, keys in held.items()][: self.needed(public)]
            return {name: self._decrypted(key, shares, body, public) for name, body in updates.items()}
        master = shamir.reconstruct({i: k["sealing_share"] for i, k in held.items()}, self.needed(public))
        found = {}
        for name, body in updates.items():
            key_ = client_key(master, public.clients.index(name))
            found[name] = (to_words(body["sealed"]) - pad(key_, where(observation.context), count)).astype(np.int64)
        return found

    def own_codes(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """The codes that a client sealed itself. It cannot decrypt real ciphertexts alone, and keeps no plain copy."""
        if self.crypto == "real":
            return {}
        return self.unsealed(observation, public, where(observation.context))

    def _decrypted(self, key: PublicKey, shares: Sequence[Share], body: Payload, public: Public) -> Integers:
        ciphertexts = from_blob(body["ciphertexts"], key.width)
        parts = {share.index: threshold.partial(key, share, ciphertexts) for share in shares}
        return self.packing(public).unpack(threshold.combine(key, parts), self.code_count(public))
