"""Records for others: collected without anything private, refused when they do not add up, computed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import leakboard as lb
from leakboard.attacks.base import ReconstructionAnswer
from leakboard.core.files import write_text
from leakboard.core.registry import ROOT
from leakboard.leaderboard.cells.answer import save_answer
from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.goals.reconstruction import Reconstruction
from leakboard.leaderboard.page.images import in_8_bits, originals, reconstructions
from leakboard.leaderboard.planning.run_folder import open_run, read_record_file
from leakboard.leaderboard.publishing.submit import (
    PUBLISHED,
    PUBLISHED_FILE,
    make_way,
    problems,
    record_files,
    without_paths,
)
from leakboard.leaderboard.publishing.verdicts import badge
from leakboard.leaderboard.records.record import Cost, Record, ScoreRecord
from tests.leaderboard.synthetic import membership, reconstruction

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def published(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("published")
    assert main(["submit", str(tiny_run), "--to", str(to), "--allow-dirty"]) == 0
    (found,) = to.iterdir()
    return found


COST = Cost(wall_seconds=0, cpu_seconds=0, peak_memory_mib=0)


def one_of(folder: Path, goal: str, attack: str = "") -> Path:
    found = [(path, read_record_file(path)) for path in record_files(folder)]
    return next(p for p, r in found if r.cell.goal == goal and attack in ("", r.cell.attack.name))


def edited(path: Path, to: Path, edit: Edit) -> Path:
    data = json.loads(path.read_text())
    edit(data)
    copy = to / path.name
    write_text(copy, json.dumps(data))
    return copy


def test_what_is_published_opens_like_a_run_and_says_the_same(tiny_run: Path, published: Path) -> None:
    mine, theirs = lb.open_run(tiny_run), lb.open_run(published)
    assert {r.key for r in theirs.records} == {r.key for r in mine.records}
    assert sorted(t.title for t in theirs.tables()) == sorted(t.title for t in mine.tables())


def test_pictures_are_published_as_a_screen_shows_them(tiny_run: Path, published: Path) -> None:
    shown = 0
    jobs = {job.record_file.name: job for job in open_run(tiny_run).jobs}
    for path in record_files(published):
        record = read_record_file(path)
        own = read_record_file(tiny_run / "records" / path.name)
        if record.cell.attack.name == "prior":  # images of the data set itself
            assert record.reconstructions == ""
            assert own.reconstructions
            assert not (published / own.reconstructions).exists()
            continue
        theirs = reconstructions(record, published, None)
        mine = reconstructions(record, tiny_run / "records", originals(record, jobs[path.name]))
        assert (theirs is None) == (mine is None)
        if theirs is not None and mine is not None:
            assert float((theirs - mine.clamp(0, 1)).abs().max()) <= 0.5 / 255 + 1e-6
            shown += 1
            # one byte a pixel, and a header
            assert (published / record.reconstructions).stat().st_size < mine.numel() + 2000
    assert shown


def test_records_with_too_many_images_are_published_without_them(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakboard.leaderboard.publishing.submit.MOST_IMAGES", 1)
    assert main(["submit", str(tiny_run), "--to", str(tmp_path), "--allow-dirty"]) == 0
    (board,) = tmp_path.iterdir()
    theirs = [read_record_file(path) for path in record_files(board)]
    asked = [record for record in theirs if record.cell.goal == "reconstruction" and record.status == "ok"]
    assert asked
    for record in asked:
        few = len(record.target_indices) <= 1 and record.cell.attack.name != "prior"
        assert bool(record.reconstructions) == few
        assert record.scores["psnr"].value is not None
    assert not list(board.glob("*.safetensors")) or any(record.reconstructions for record in asked)


def test_of_a_sum_what_was_scored_is_shown_and_published(tmp_path: Path) -> None:
    """Two problems of five images each, of which one is the victim's, and a pixel that is no number."""
    truth = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    others = torch.rand(2, 5, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    others[0, 3], others[1, 0] = truth[0], truth[1]
    others[0, 3, 0, 0, 0] = torch.nan
    record = reconstruction("secagg", "inverting-gradients", [1.0, 1.0]).model_copy(
        update={"reconstructions": "a.safetensors"}
    )
    save_answer(Reconstruction(), tmp_path / "a.safetensors", ReconstructionAnswer(tuple(others)), COST)
    expected = truth.clone()
    expected[0, 0, 0, 0] = 0.5
    shown = reconstructions(record, tmp_path, truth)
    assert shown is not None
    assert torch.equal(shown.nan_to_num(0.5), expected)
    (tmp_path / "b.safetensors").write_bytes(in_8_bits(tmp_path / "a.safetensors", truth))
    theirs = reconstructions(record.model_copy(update={"reconstructions": "b.safetensors"}), tmp_path, None)
    assert theirs is not None
    assert theirs.shape == truth.shape
    assert float((theirs - expected).abs().max()) <= 0.5 / 255 + 1e-6


def test_nothing_of_this_machine_is_published(tiny_run: Path, published: Path) -> None:
    for path in filter(Path.is_file, published.rglob("*")):
        content = path.read_bytes()
        assert str(tiny_run).encode() not in content
        assert str(ROOT).encode() not in content
    assert not list(published.glob("run.json"))
    pictures = {read_record_file(path).reconstructions for path in record_files(published)} - {""}
    assert {path.name for path in published.glob("*.safetensors")} == pictures


def test_a_published_record_can_be_verified_and_a_tampered_one_cannot(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = one_of(published, "membership", "loss-threshold")
    copy = edited(path, tmp_path, lambda data: None)
    assert badge(copy, read_record_file(copy)) == "self-reported"
    assert main(["verify", str(copy), "--mark"]) == 0
    assert "verified" in capsys.readouterr().out
    assert badge(copy, read_record_file(copy)) == "verified"

    def better(data: dict[str, Any]) -> None:
        """Consistent in itself: every member has a higher score than every other, and the AUC follows."""
        data["member_scores"] = [float(member) for member in data["members"]]
        data["scores"]["auc"]["value"] = 1.0

    tampered = edited(path, tmp_path, better)
    assert badge(tampered, read_record_file(tampered)) == "self-reported"  # the note is of another content
    assert main(["verify", str(tampered)]) == 1
    assert "differs: auc" in capsys.readouterr().out


def set_key(data: dict[str, Any]) -> None:
    data["key"] = "0" * 64


def set_value(data: dict[str, Any]) -> None:
    data["scores"]["psnr"]["value"] += 1


def set_cell(data: dict[str, Any]) -> None:
    data["cell"]["training"]["seed"] += 1


def set_data(data: dict[str, Any]) -> None:
    data["provenance"]["data_digest"] = "0" * 64


def no_provenance(data: dict[str, Any]) -> None:
    data["provenance"] = None


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (set_key, "its key is not the hash"),
        (set_value, "is not the mean of its values"),
        (set_cell, "its ingredients are those of another cell"),
        (set_data, "names other data"),
        (no_provenance, "its provenance"),
    ],
)
def test_a_record_that_does_not_add_up_is_refused(
    edit: Edit, sentence: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edited(one_of(published, "reconstruction"), tmp_path, edit)
    assert any(sentence in problem for problem in problems(read_record_file(path)))
    assert main(["verify", str(path)]) == 2
    assert sentence in capsys.readouterr().err


def test_changed_code_makes_a_record_an_older_one(published: Path) -> None:
    path = one_of(published, "reconstruction")
    record = read_record_file(path)
    ingredients = json.loads(json.dumps(record.ingredients))
    module = next(iter(ingredients["training"]["modules"]))
    ingredients["training"]["modules"][module] = "0" * 64
    assert badge(path, record) == "self-reported"
    assert badge(path, record.model_copy(update={"ingredients": ingredients})) == "older code"


def test_two_runs_are_compared(
    tiny_run: Path, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(tiny_run), str(published)]) == 0
    assert "Every score of every common cell is equal." in capsys.readouterr().out
    other = tmp_path / "other"
    other.mkdir()
    for path in published.glob("*.json"):
        edited(path, other, lambda data: None)
    edited(one_of(published, "reconstruction"), other, set_value)
    assert main(["compare", str(tiny_run), str(other)]) == 0
    said = capsys.readouterr().out
    assert "psnr" in said
    assert "1.0000" in said


def test_an_unfinished_run_is_not_published(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "run"
    (copy / "records").mkdir(parents=True)
    (copy / "run.json").write_text((tiny_run / "run.json").read_text())
    assert main(["submit", str(copy), "--to", str(tmp_path / "to")]) == 2
    assert "are not there yet: finish the run first" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_no_path_stays_in_what_a_record_says() -> None:
    reason = "The LPIPS weights in /home/me/My.d/alex.pth cannot be read (OSError: '/mnt/x/y'), see docs/metrics.md."
    made = membership("fedsgd", "lira").model_copy(
        update={
            "reason": reason,
            "flags": ["stopped: read ~/data/a.npz", "1/2 of https://example.org/a/b"],
            "scores": {"auc": ScoreRecord(value=None, reason="no /tmp/a/b")},
            "traceback": "File /home/me/x.py",
        }
    )
    bare = without_paths(made)
    assert bare.reason == "The LPIPS weights in alex.pth cannot be read (OSError: 'y'), see docs/metrics.md."
    assert bare.flags == ["stopped: read a.npz", "1/2 of https://example.org/a/b"]
    assert (bare.scores["auc"].reason, bare.traceback) == ("no b", "")


def folder_of(to: Path, *made: Record) -> Path:
    """A folder of published records made by hand."""
    given = {"suite": "tiny", "control": "fedsgd", "utility_gate": 0.9}
    write_text(to / PUBLISHED_FILE, json.dumps(given))
    for number, record in enumerate(made):
        write_text(to / f"{number}.json", record.to_json())
    return to


def test_records_that_no_table_can_be_made_of_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, rebuilt = membership("fedsgd", "lira"), reconstruction("fedsgd", "prior", [1.0, 2.0])
    assert main(["table", "--out", str(folder_of(tmp_path / "good", asked, rebuilt))]) == 0
    assert "Records: 2 self-reported, 0 attack verified, 0 verified, 0 older code." in capsys.readouterr().err
    other_goal = asked.model_copy(update={"cell": asked.cell.model_copy(update={"goal": "theft"})})
    for place, sentence, hostile in (
        ("few", "not equally many", asked.model_copy(update={"members": asked.members[1:]})),
        ("goal", "its goal is none of", other_goal),
        ("score", "its psnr does not have one value per target", rebuilt.model_copy(update={"scores": {}})),
        ("twice", "a second record of its cell", asked.model_copy(update={"key": "another"})),
    ):
        folder = (
            folder_of(tmp_path / place, asked, hostile) if place == "twice" else folder_of(tmp_path / place, hostile)
        )
        assert main(["table", "--out", str(folder)]) == 2
        said = capsys.readouterr().err
        assert sentence in said, said


def test_records_of_older_code_make_way_for_those_of_the_same_cell(tmp_path: Path) -> None:
    fresh = reconstruction("fedsgd", "prior", [1.0]).model_copy(update={"reconstructions": "new.safetensors"})
    older = fresh.model_copy(update={"key": "older", "reconstructions": "old.safetensors"})
    stranger = reconstruction("fedsgd", "prior", [1.0], seed=7)  # another seed: somebody else's
    folder_of(tmp_path, fresh, older, stranger)
    for name in ("1.verified", "old.safetensors", "new.safetensors"):
        (tmp_path / name).touch()
    make_way(tmp_path, {"0.json": fresh})
    assert {path.name for path in tmp_path.iterdir()} == {PUBLISHED_FILE, "0.json", "2.json", "new.safetensors"}


def published_records() -> list[Path]:
    return [path for folder in sorted(PUBLISHED.glob("*")) if folder.is_dir() for path in record_files(folder)]


def test_every_published_record_adds_up() -> None:
    """What CI refuses: a broken schema, missing provenance, a key or a number that does not fit."""
    broken = {path.name: found for path in published_records() if (found := list(problems(read_record_file(path))))}
    assert broken == {}
    for path in published_records():
        assert (path.parent / PUBLISHED_FILE).is_file()
        record: Record = read_record_file(path)
        assert not record.traceback
        assert not record.reconstructions or (path.parent / Path(record.reconstructions).name).is_file()
