"""A new attack on published trainings: nothing is trained, and what is attacked is what was recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import leakboard as lb
from leakboard.core.errors import UserError
from leakboard.federation.observed import REPLAY_FOLDER, recorded_digest
from leakboard.federation.transcript import Transcript
from leakboard.leaderboard.planning.run_folder import open_run, read_record_file
from leakboard.leaderboard.publishing.changes import read_changes
from leakboard.leaderboard.publishing.replays import MOST_BOARD, REPLAYS, copy_files, holds_image, take_replay
from leakboard.leaderboard.publishing.submit import open_any, record_files, submit
from leakboard.leaderboard.publishing.verdicts import badge
from tests.leaderboard.plugin_texts import CONSTANT
from tests.leaderboard.runs import call, records, write_suite

ATTACKS = [{"name": "prior", "threats": ["server"]}, {"name": "loss-threshold", "threats": ["client"]}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def original(home: Path) -> Path:
    """A finished run of two defenses. Tests must not write into it."""
    suite = write_suite(home, defenses=["fedsgd", "secagg"], attacks=ATTACKS, training__rounds=3)
    outcome = call("run", "--suite", suite, "--out", home / "original", "--workers", 2, "--keep-transcripts")
    assert outcome.code == 0, outcome.err
    return home / "original"


@pytest.fixture(scope="module")
def board(home: Path, original: Path) -> Path:
    """The board of that run. Tests must not write into it."""
    said = call("submit", original, "--to", home / "published", "--allow-dirty")
    assert said.code == 0, said.err
    assert "of 25 MB" in said.out
    return home / "published" / "tiny"


@pytest.fixture(scope="module")
def attack(home: Path) -> Path:
    path = home / "constant.py"
    path.write_text(CONSTANT.replace("VALUE", "0.5"))
    return path


@pytest.fixture(scope="module")
def attacked(home: Path, board: Path, attack: Path) -> Path:
    outcome = call(
        *("run", "--from", board, "--attack", attack, "--out", home / "attacked", "--workers", 2, "--keep-transcripts")
    )
    assert outcome.code == 0, outcome.err
    assert ": trained, " not in outcome.err
    assert outcome.err.count("ok       replayed: training ") == 2
    return home / "attacked"


def copy_of(board: Path, to: Path) -> Path:
    return Path(shutil.copytree(board, to / "tiny"))


def test_only_what_a_replay_needs_is_published(original: Path, board: Path) -> None:
    keys = {job.training_key for job in open_run(original).jobs}
    assert {path.name for path in (board / REPLAYS).iterdir()} == keys
    for key in keys:
        files = {path.name: path.read_bytes() for path in (board / REPLAYS / key).iterdir()}
        own = original / "trainings" / key / REPLAY_FOLDER
        assert files == {path.name: path.read_bytes() for path in own.iterdir()}
        assert set(files) == {"about.json", "value.json", "value.safetensors"}


def test_a_new_attack_sees_what_was_recorded(original: Path, board: Path, attacked: Path) -> None:
    for job in open_run(original).jobs:
        mine, theirs = (run / "trainings" / job.training_key for run in (attacked, original))
        digest = Transcript.load(mine).digest()
        assert digest == Transcript.load(theirs).digest() == recorded_digest(board / REPLAYS / job.training_key)
        assert (mine / "models.safetensors").read_bytes() == (theirs / "models.safetensors").read_bytes()
        assert (mine / "summary.json").read_bytes() == (theirs / "summary.json").read_bytes()


def test_the_new_records_stand_beside_the_published_ones(board: Path, attacked: Path) -> None:
    found, published = records(attacked), {r.cell.slug: r for r in open_any(board).records}
    new = {name for name, record in found.items() if record.cell.attack.label == "constant"}
    assert len(new) == 2
    assert {name: record.key for name, record in found.items() if name not in new} == {
        name: record.key for name, record in published.items()
    }
    for name in new:
        record = found[name]
        other = next(r for r in published.values() if r.cell.training == record.cell.training)
        assert (record.status, record.training) == ("ok", other.training)
        assert record.ingredients["training"] == other.ingredients["training"]
        assert record.scores["auc"].value == 0.5
    assert {row.defense for one in lb.open_run(attacked).scoreboards() for row in one.rows} == {"fedsgd", "secagg"}


def test_the_old_attack_gets_the_same_scores_from_the_snapshots(board: Path, tmp_path: Path) -> None:
    """Membership in the training needs the final model, which is replayed too."""
    run = lb.evaluate(attack="loss-threshold", on=board, out=tmp_path / "run", workers=2, progress=False)
    again = {r.cell.slug: r.scores for r in run.records if r.cell.attack.name == "loss-threshold"}
    assert again == {r.cell.slug: r.scores for r in open_any(board).records if r.cell.attack.name == "loss-threshold"}
    assert not list((tmp_path / "run" / "trainings").glob("*/transcript*"))  # they can be replayed again


def test_a_board_is_refreshed_and_says_what_came(board: Path, attack: Path, attacked: Path, tmp_path: Path) -> None:
    copy, run = copy_of(board, tmp_path), Path(shutil.copytree(attacked, tmp_path / "run"))
    said = call("refresh", copy, "--attack", attack, "--out", run, "--allow-dirty")
    assert said.code == 0, said.err
    assert "6 cells" not in said.out
    assert [change.version for change in read_changes(copy)] == [1, 2]
    assert read_changes(copy)[-1].records == 2
    assert len(record_files(copy)) == len(record_files(board)) + 2
    assert not open_any(copy).waiting
    assert {p.name for p in (copy / REPLAYS).iterdir()} == {p.name for p in (board / REPLAYS).iterdir()}


def test_verify_says_how_deep_it_looked(board: Path, tmp_path: Path) -> None:
    copy = copy_of(board, tmp_path)
    path = next(p for p in record_files(copy) if "secagg--loss-threshold" in p.name)
    said = call("verify", path, "--depth", "attack", "--mark")
    assert (said.code, "attack verified" in said.out) == (0, True), said.err
    assert badge(path, read_record_file(path)) == "attack verified"
    said = call("verify", copy, "--depth", "attack")  # one record of each training
    assert (said.code, said.out.count("attack verified")) == (0, 2), said.err
    shutil.rmtree(copy / REPLAYS)
    said = call("verify", path, "--depth", "attack")
    assert said.code == 2
    assert "has no snapshot beside it: verify it with --depth training" in said.err


# --- refusals -----------------------------------------------------------------------------------


def test_other_data_and_missing_snapshots_are_told(board: Path, attack: Path, tmp_path: Path) -> None:
    copy = copy_of(board, tmp_path)
    (gone,) = (p for p in (copy / REPLAYS).iterdir() if p.name in _keys(board, "secagg"))
    shutil.rmtree(gone)
    with pytest.raises(UserError, match=r"has no snapshots of: secagg \(seed 0\); leave them out"):
        lb.prepare(attack=attack, on=copy, out=tmp_path / "run")
    assert len(lb.prepare("fedsgd", attack, on=copy, out=tmp_path / "run").plan.trainings) == 1
    for path in record_files(copy):
        data = json.loads(path.read_text())
        data["provenance"]["data_digest"] = "0" * 64
        path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"made on other data: digits has the digest 000000000000… there .* data get"):
        lb.prepare("fedsgd", attack, on=copy, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _keys(board: Path, defense: str) -> set[str]:
    return {r.training.key for r in open_any(board).records if r.training and r.cell.training.defense.label == defense}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--from", "nowhere", "--attack", "prior"), "There is no published board 'nowhere'"),
        (("--from", "BOARD", "--attack", "prior", "--defense", "clip"), "There is no defense on the board tiny 'clip'"),
        (("--from", "BOARD"), "name the attack, such as `--attack mine.py`"),
        (("--from", "BOARD", "--attack", "prior", "--fresh-keys"), "fresh keys need a training of their own"),
    ],
)
def test_what_cannot_be_attacked_is_told(given: tuple[str, ...], said: str, board: Path, tmp_path: Path) -> None:
    words = [board if word == "BOARD" else word for word in given]
    outcome = call("run", *words, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert said.lower() in outcome.err.lower()
    assert not (tmp_path / "run").exists()


def test_a_changed_snapshot_is_found_and_no_training_is_run(board: Path, attack: Path, tmp_path: Path) -> None:
    copy = copy_of(board, tmp_path)
    (key,) = _keys(board, "fedsgd")
    about = copy / REPLAYS / key / "about.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "transcript": "0" * 64}))
    outcome = call("run", "--from", copy, "--attack", attack, "--defense", "fedsgd", "--out", tmp_path / "run")
    assert outcome.code == 1
    assert "The replayed rounds differ from the recorded ones" in outcome.err


def test_a_folder_that_is_no_snapshot_is_refused(board: Path, tmp_path: Path) -> None:
    copy = copy_of(board, tmp_path)
    one, two = sorted((copy / REPLAYS).iterdir())
    (tmp_path / "to").mkdir()
    (one / "value.json").unlink()
    (one / "value.json").symlink_to(two / "value.json")
    with pytest.raises(UserError, match=r"value.json is no file"):
        copy_files(one, tmp_path / "to")
    with (two / "value.json").open("wb") as file:
        file.truncate(MOST_BOARD + 1)
    with pytest.raises(UserError, match=r"at most 25000000 bytes"):
        copy_files(two, tmp_path / "to")
    shutil.move(two / "about.json", one / "about.json")
    with pytest.raises(UserError, match=r"is the snapshot of another training"):
        take_replay(copy, one.name, tmp_path / "new")
    assert not any((tmp_path / "to").iterdir())


def test_too_large_fresh_and_image_snapshots_are_not_published(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(original, tmp_path / "run"))
    monkeypatch.setattr("leakboard.leaderboard.publishing.replays.MOST_BOARD", 1000)
    with pytest.raises(UserError, match=r"would have 0\.\d MB; at most 0.001 MB are published"):
        submit(run, tmp_path / "to", allow_dirty=True)
    monkeypatch.setattr("leakboard.leaderboard.publishing.replays.holds_image", lambda content, images: True)
    with pytest.raises(UserError, match=r"The snapshot of fedsgd holds an image of a client"):
        submit(run, tmp_path / "to", allow_dirty=True)
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"keys":"seeded"', '"keys":"fresh"'))
    with pytest.raises(UserError, match=r"its keys are fresh"):
        submit(run, tmp_path / "to", allow_dirty=True)
    assert not (tmp_path / "to").exists()


def test_an_image_is_found_among_other_numbers() -> None:
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(5, 1, 8, 8, generator=draws)
    images[3] = 0.0  # one value all over is no image
    noise = torch.rand(300, generator=draws)
    assert not holds_image(torch.cat([noise, torch.zeros(100)]).numpy().tobytes(), images)
    hidden = torch.cat([noise, images[2].flatten(), noise])
    assert holds_image(hidden.numpy().tobytes(), images)
