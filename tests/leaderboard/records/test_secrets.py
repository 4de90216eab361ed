"""No secret leaves the folder of a training: not into a record, a log, a page, the terminal or what is published."""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakboard.core.randomness import derive_key, run_secret
from leakboard.federation.payload import leaves
from leakboard.federation.transcript import Transcript
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.leaderboard.publishing.replays import REPLAYS
from tests.defenses.small import KEYS
from tests.leaderboard.runs import Outcome, call, write_suite

ENCRYPTED = ("secagg", "mp-dp+", "tp-smc", "hybridalpha", "pile", "mp-dp")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def outcomes(home: Path) -> list[Outcome]:
    """A run of all schemes that have keys, and its publication."""
    attacks = [
        {"name": "prior", "threats": ["server"]},
        {"name": "loss-threshold", "threats": ["client", "server+keys"]},
    ]
    defenses = ["fedsgd", *({"name": name, "params": KEYS.get(name, {})} for name in ENCRYPTED)]
    small = {"training": {"rounds": 2, "batch_size": 2, "clients": 3}, "observe": {"rounds": ["first"], "targets": 2}}
    suite = write_suite(
        home, attacks=attacks, defenses=defenses, model={"name": "mlp", "params": {"hidden": [2]}}, **small
    )
    done = call("run", "--suite", suite, "--out", home / "run", "--keep-transcripts")
    return [done, call("submit", home / "run", "--to", home / "published", "--allow-dirty")]


def secrets_of(run: Path) -> dict[str, list[bytes]]:
    """By defense: the parties' secrets, some keys that derive from them, and all private keys, shares and seeds."""
    found: dict[str, list[bytes]] = {}
    for job in open_run(run).jobs:
        mine = found.setdefault(job.training.defense.label, [])
        kept = json.loads((job.training_folder / "secrets.json").read_text())
        mine += [bytes.fromhex(text) for text in kept.values()] + [run_secret(job.private_seed)]
        mine += [derive_key(bytes.fromhex(text), "draws", "keys", "train", 0, -1) for text in kept.values()]
        mine.append(job.private_seed.to_bytes(8, "big"))
        for observation in Transcript.load(job.training_folder).observations:
            for held in (*observation.states.values(), *observation.keys.values()):
                for path, leaf in leaves(held):
                    if "public" not in path and isinstance(leaf, bytes) and len(leaf) >= 16:
                        mine.append(leaf)
                    elif "public" not in path and isinstance(leaf, int) and leaf.bit_length() > 64:
                        mine.append(leaf.to_bytes((leaf.bit_length() + 7) // 8, "big"))
    return {name: list(dict.fromkeys(mine)) for name, mine in found.items()}


def root_secrets(run: Path) -> set[bytes]:
    """The secrets of all parties, and the seeds they come from."""
    found = set()
    for job in open_run(run).jobs:
        kept = json.loads((job.training_folder / "secrets.json").read_text())
        found |= {bytes.fromhex(text) for text in kept.values()}
        found |= {run_secret(job.private_seed), job.private_seed.to_bytes(8, "big")}
    return found


def written(secret: bytes) -> Iterator[bytes]:
    """All ways in which somebody might write a secret down."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield base64.b64encode(secret).rstrip(b"=")[:-1]  # the last digit depends on what follows
    yield base64.urlsafe_b64encode(secret).rstrip(b"=")[:-1]
    yield str(int.from_bytes(secret, "big")).encode()
    yield str(int.from_bytes(secret, "little")).encode()
    yield repr(secret)[2:-1].encode()


def content(folder: Path, but: str = "nothing") -> bytes:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and but not in path.parts)
    assert files
    return b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)


def test_no_secret_leaves_the_folder_of_its_training(home: Path, outcomes: list[Outcome]) -> None:
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    secrets = secrets_of(home / "run")
    assert set(secrets) == {"fedsgd", *ENCRYPTED}
    assert all(len(secrets[name]) > len(secrets["fedsgd"]) for name in ENCRYPTED)  # each has keys of its own
    needles = {form for mine in secrets.values() for secret in mine for form in written(secret)}
    said = "".join(outcome.out + outcome.err for outcome in outcomes).encode()
    published = content(home / "published", but=REPLAYS)
    open_to_others = b"\0".join([content(home / "run", but="trainings"), published, said])
    assert [form[:20] for form in needles if form in open_to_others] == []
    # a published snapshot may hold keys of a seeded run, but nobody's secret from which all other draws follow
    snapshots = content(home / "published" / "tiny" / REPLAYS)
    roots = {form for secret in root_secrets(home / "run") for form in written(secret)}
    assert [form[:20] for form in roots if form in snapshots] == []
    inside = content(home / "run" / "trainings")
    assert sum(form in inside for form in needles) >= len(secrets)  # the search does find what is there


def test_nothing_published_tells_whose_machine_it_was(home: Path, outcomes: list[Outcome]) -> None:
    text = content(home / "published")
    assert outcomes[1].code == 0
    for name in filter(lambda n: len(n) > 3, (str(home), str(Path.home()) + "/", platform.node())):
        assert name.encode() not in text
