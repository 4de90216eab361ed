"""Snapshots that were cut, changed or invented give a federation or one sentence, and take no more than their size."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakboard.federation.observed import check_replayed, replay_observed, save_replay
from leakboard.federation.outcome import Outcome
from leakboard.federation.rounds import Federation
from leakboard.federation.snapshot import ReplaySnapshot, Snapshot, machine
from tests.federation.makings import Keyed, observe_of, public_of, shards_of
from tests.fuzz.harness import broken_bytes, examples, lying_header, mutated, replaced, survives

FILES = ("about.json", "value.json", "value.safetensors")
PUBLIC = public_of((12, 12))


def federation() -> Federation:
    shards = shards_of(PUBLIC.shard_sizes)
    return Federation(Keyed(), PUBLIC, shards, observe_of("first"), 0, kept=ReplaySnapshot())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    made = federation()
    made.at_boundary = lambda done, take: take().save(folder, machine()) if done == 2 else None
    made.run()
    return folder


@pytest.fixture
def snapshot(kept: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(kept, tmp_path / "snapshot"))


def restored(folder: Path) -> Federation | None:
    def read() -> Federation:
        made = federation()
        made.restore(Snapshot.load(folder, machine(), most=2**24))
        return made

    found: Federation | None = survives("snapshots", read, folder)
    return found


def check_damage(path: Path, data: st.DataObject, read: Callable[[], object]) -> None:
    whole = path.read_bytes()
    damaged = broken_bytes(data.draw, whole)
    with replaced({path: damaged}):
        assert read() is None or path.name != "value.json" or damaged == whole


def lying_tree(data: st.DataObject, folder: Path) -> dict[Path, bytes]:
    """Whoever changes the tree can give it the right digest, too."""
    tree, about = folder / "value.json", folder / "about.json"
    lie = json.dumps(mutated(data.draw, json.loads(tree.read_bytes()))).encode()
    said = {**json.loads(about.read_text()), "sha256": hashlib.sha256(lie).hexdigest()}
    return {tree: lie, about: json.dumps(said).encode()}


def test_the_snapshot_that_is_broken_here_is_a_good_one(snapshot: Path) -> None:
    found = restored(snapshot)
    assert found is not None
    assert found.done == 2


@examples(40)
@given(name=st.sampled_from(FILES), data=st.data())
def test_damage_is_found(snapshot: Path, name: str, data: st.DataObject) -> None:
    check_damage(snapshot / name, data, lambda: restored(snapshot))


@examples(60)
@given(data=st.data())
def test_a_tree_of_a_liar(snapshot: Path, data: st.DataObject) -> None:
    with replaced(lying_tree(data, snapshot)):
        restored(snapshot)


@examples(15)
@given(data=st.data())
def test_tensors_whose_header_lies(snapshot: Path, data: st.DataObject) -> None:
    path = snapshot / "value.safetensors"
    with replaced({path: lying_header(data.draw, path.read_bytes())}):
        restored(snapshot)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "a folder", "deep"])
def test_a_file_that_is_none(snapshot: Path, name: str, how: str) -> None:
    path = snapshot / name
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "missing":
        path.write_text("[" * 100_000 if how == "deep" else "")
    assert restored(snapshot) is None


# --- what is published: the observed rounds ------------------------------------------------------


@pytest.fixture(scope="module")
def kept_replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "replay"
    outcome = replaying().run()
    save_replay(folder, outcome, outcome.transcript, "key", 0)
    return folder


@pytest.fixture
def replay(kept_replay: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(kept_replay, tmp_path / "replay"))


def replaying() -> Federation:
    shards = shards_of(PUBLIC.shard_sizes)
    return Federation(Keyed(), PUBLIC, shards, observe_of("first", "last"), 0, kept=ReplaySnapshot())


def replayed(folder: Path) -> Outcome | None:
    def read() -> Outcome:
        found = replay_observed(folder, Keyed(), PUBLIC, shards_of(PUBLIC.shard_sizes), observe_of("first", "last"), 0)
        check_replayed(folder, found, found.transcript)
        return found

    found: Outcome | None = survives("replays", read, folder)
    return found


def test_the_replay_that_is_broken_here_is_a_good_one(replay: Path) -> None:
    assert replayed(replay) is not None


@examples(25)
@given(name=st.sampled_from(FILES), data=st.data())
def test_damage_of_a_replay_is_found(replay: Path, name: str, data: st.DataObject) -> None:
    check_damage(replay / name, data, lambda: replayed(replay))


@examples(40)
@given(data=st.data())
def test_a_replay_of_a_liar_gives_the_recorded_rounds_or_one_sentence(replay: Path, data: st.DataObject) -> None:
    with replaced(lying_tree(data, replay)):
        replayed(replay)  # `check_replayed` has compared every bit
