"""Encryption of a ResNet20 gradient (270,896 values, five clients), compared with existing libraries.

    .venv/bin/python benchmarks/crypto.py [paillier] [functional] [--rounds N]

paillier    Threshold Paillier, 2048 bits, 24-bit values, packed; the whole gradient, packing and table included.
            Peer: phe 1.5.0 with gmpy2, 2048 bits, one integer per ciphertext, which is its interface (no threshold).
            The line "by ciphertext" leaves out the gain from packing.
functional  The scheme of HybridAlpha, 2048-bit group, pads of a label; sums of five within 20,000. Peer: pymife 0.0.14,
            the same scheme, vectors of size 1, in its default group of 1024 bits. Tables and keys are timed separately.

Peers run in separate environments, which the first run creates under .cache/bench.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import numpy as np

from benchmarks._ratio import add_parts, cpu_seconds, least, line, peer_python, peer_seconds
from leakboard.core.randomness import Stream
from leakboard.defenses.crypto.discrete_log import discrete_log_of
from leakboard.defenses.crypto.fixed_point import Integers, Packing
from leakboard.defenses.crypto.functional import (
    Decryptor,
    FunctionalKey,
    SlotEncryptor,
    SlotKey,
    functional_key,
    pads,
    powers_of_g,
    slot_key,
)
from leakboard.defenses.crypto.threshold import Encryptor, PublicKey, generate

VALUES, CLIENTS, BITS, KEY_BITS, THRESHOLD = 270_896, 5, 24, 2048, 3
BOUND, ENCRYPTED, DECRYPTED = 20_000, 1000, 200
PEER_VALUES = 60

PHE = f"""
import json, time
from phe import paillier, util
assert util.HAVE_GMP
public, private = paillier.generate_paillier_keypair(n_length={KEY_BITS})
values = [(7919 * k) % 2**{BITS} for k in range({PEER_VALUES})]
started = time.process_time()
encrypted = [public.encrypt(value) for value in values]
seconds = time.process_time() - started
assert [private.decrypt(value) for value in encrypted[:3]] == values[:3]
print(json.dumps({{"peer": seconds}}))
"""

PYMIFE = f"""
import json, time
from mife.multi.damgard import FeDamgardMulti
started = time.process_time()
key = FeDamgardMulti.generate({CLIENTS}, 1)
slots = [key.get_enc_key(i) for i in range({CLIENTS})]
opening = FeDamgardMulti.keygen([[1]] * {CLIENTS}, key)
setup = time.process_time() - started
rows = [[(7919 * (k + i)) % 8001 - 4000 for k in range({PEER_VALUES})] for i in range({CLIENTS})]
started = time.process_time()
encrypted = [[FeDamgardMulti.encrypt([x], slot) for x in row] for slot, row in zip(slots, rows)]
encrypting = (time.process_time() - started) / {CLIENTS}
started = time.process_time()
sums = [FeDamgardMulti.decrypt(list(column), key, opening, (-{BOUND}, {BOUND})) for column in zip(*encrypted)]
decrypting = time.process_time() - started
assert sums == [sum(column) for column in zip(*rows)]
print(json.dumps({{"peer setup": setup, "peer encrypt": encrypting, "peer decrypt": decrypting}}))
"""


def paillier(rounds: int) -> None:
    """A gradient of packed values, compared with single values."""
    python = peer_python("phe", "phe==1.5.0", "gmpy2==2.3.2")
    public, _ = generate(Stream(bytes(32)), KEY_BITS, CLIENTS, THRESHOLD)
    codes = np.random.default_rng(0).integers(0, 2**BITS, VALUES)
    best = least([partial(encrypt_gradient, public, codes), partial(peer_seconds, python, PHE)], rounds)
    seconds = best["table"] + best["encrypt"]
    name, unit = "threshold Paillier, packed encryption of a ResNet20 gradient", "values / CPU s"
    print(line(name, VALUES / seconds, PEER_VALUES / best["peer"], unit, 300.0, at_most=False))
    ciphertexts = Packing(BITS, CLIENTS, public.plain_bits).plaintexts(VALUES)
    print(line("the same, by ciphertext", ciphertexts / seconds, PEER_VALUES / best["peer"], "ciphertexts / CPU s"))
    print(line("its table of powers, as a part of that", best["table"], seconds, "CPU s"))


def encrypt_gradient(public: PublicKey, codes: Integers) -> dict[str, float]:
    """CPU-seconds for the table, and for packing and encrypting all codes."""
    packing, stream = Packing(BITS, CLIENTS, public.plain_bits), Stream(bytes(32))
    encryptors: list[Encryptor] = []
    table = cpu_seconds(lambda: encryptors.append(Encryptor(public)))
    encrypt = cpu_seconds(lambda: [encryptors[0].encrypt(plain, stream) for plain in packing.pack(codes)])
    return {"table": table, "encrypt": encrypt}


def functional(rounds: int) -> None:
    """Encryption by a client, and decryption of sums of five."""
    python = peer_python("pymife", "pymife==0.0.14")
    best = least([functional_seconds, partial(peer_seconds, python, PYMIFE)], rounds)
    name, unit = "functional encryption", "values / CPU s"
    for part, count, target in (("encrypt", ENCRYPTED, 4.0), ("decrypt", DECRYPTED, 2.0)):
        ours, peer = count / best[part], PEER_VALUES / best[f"peer {part}"]
        print(line(f"{name}, {part}", ours, peer, unit, target, at_most=False))
    print(line(f"{name}, tables and keys (once per process)", best["setup"], best["peer setup"], "CPU s"))


def functional_seconds() -> dict[str, float]:
    """CPU-seconds for keys and tables, for encrypting ENCRYPTED values, for opening DECRYPTED sums."""
    powers_of_g.cache_clear()
    discrete_log_of.cache_clear()
    stream = Stream(bytes(32))
    made: list[tuple[dict[int, SlotKey], list[SlotEncryptor], FunctionalKey, Decryptor]] = []

    def set_up() -> None:
        keys = {slot: slot_key(stream) for slot in range(CLIENTS)}
        opening = functional_key(keys, dict.fromkeys(keys, 1), "label", DECRYPTED)
        made.append((keys, [SlotEncryptor(key) for key in keys.values()], opening, Decryptor(BOUND)))

    seconds = {"setup": cpu_seconds(set_up)}
    keys, encryptors, opening, decryptor = made[0]
    share = BOUND // CLIENTS
    rows = np.random.default_rng(0).integers(-share, share + 1, (CLIENTS, ENCRYPTED))

    def encrypt(slot: int, count: int) -> list[tuple[int, int]]:
        return encryptors[slot].encrypt(rows[slot, :count].tolist(), pads(keys[slot], "label", count), stream)

    seconds["encrypt"] = cpu_seconds(lambda: encrypt(0, ENCRYPTED))
    ciphertexts = {slot: encrypt(slot, DECRYPTED) for slot in keys}
    sums: list[int] = []
    seconds["decrypt"] = cpu_seconds(lambda: sums.extend(decryptor.decrypt(opening, ciphertexts)))
    assert sums == rows[:, :DECRYPTED].sum(axis=0).tolist()
    return seconds


PARTS = {"paillier": paillier, "functional": functional}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_parts(parser, *PARTS)
    parser.add_argument("--rounds", type=int, default=3, help="number of timings; the best counts")
    given = parser.parse_args()
    for part in given.parts or PARTS:
        PARTS[part](given.rounds)
