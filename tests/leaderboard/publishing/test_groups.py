"""Boards grow: whole groups of one defense and seed, from several runs, with nothing lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import leakboard as lb
from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.leaderboard.planning.run_folder import read_record_file
from leakboard.leaderboard.publishing.changes import RankChange, note_change, rank_changes, read_changes
from leakboard.leaderboard.publishing.groups import Group, group_of, lacking, refuse_disagreement
from leakboard.leaderboard.publishing.submit import PUBLISHED, PUBLISHED_FILE, open_any, record_files, submit
from leakboard.leaderboard.tables.formats import to_terminal
from tests.leaderboard.runs import call, write_suite
from tests.leaderboard.synthetic import membership, reconstruction


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one defense at two seeds. Tests must not write into it."""
    folder = tmp_path_factory.mktemp("grown")
    attacks = [{"name": "prior", "threats": ["server"]}, {"name": "loss-threshold", "threats": ["client"]}]
    suite = write_suite(folder, seeds=[0, 1], attacks=attacks, training__rounds=2)
    outcome = call("run", "--suite", suite, "--out", folder / "run", "--workers", 2)
    assert outcome.code == 0, outcome.err
    return folder / "run"


def part_of(run: Path, to: Path, seed: int, *, of_other: int = 1) -> Path:
    """The run as it was when one seed was done and `of_other` cells of the other."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("trainings", "report"))
    others = [p for p in sorted((to / "records").glob("*.json")) if read_record_file(p).cell.training.seed != seed]
    for path in others[of_other:]:
        path.unlink()
    return to


def seeds(board: Path) -> set[int]:
    return {read_record_file(path).cell.training.seed for path in record_files(board)}


def test_a_board_is_built_seed_by_seed_and_says_what_is_missing(two_seeds: Path, tmp_path: Path) -> None:
    first = part_of(two_seeds, tmp_path / "first", 0)
    said = call("submit", first, "--to", tmp_path / "to", "--allow-dirty")
    board = tmp_path / "to" / "tiny"
    assert said.code == 0, said.err
    assert "left out, because cells are not there yet: fedsgd (seed 1)" in said.out
    assert seeds(board) == {0}
    missing = "This board is not complete. Not published yet: fedsgd (seed 1)."
    assert missing in said.out
    opened = lb.open_run(board)
    assert missing in opened.notes
    assert all(missing in table.notes for table in opened.tables())
    assert missing in " ".join(to_terminal(opened.tables(scoreboard=True)[0], 200).split())
    kept = {path.name: path.read_bytes() for path in record_files(board)}
    submit(part_of(two_seeds, tmp_path / "second", 1, of_other=0), tmp_path / "to", allow_dirty=True)
    assert seeds(board) == {0, 1}
    assert {name: (board / name).read_bytes() for name in kept} == kept
    assert not any("Not published yet" in note for note in lb.open_run(board).notes)
    assert {record.key for record in lb.open_run(board).records} == {r.key for r in lb.open_run(two_seeds).records}
    assert json.loads((board / PUBLISHED_FILE).read_text())["version"] == 2
    assert [[group[2] for group in change.groups] for change in read_changes(board)] == [[0], [1]]


def test_what_is_there_already_stays_with_its_note(two_seeds: Path, tmp_path: Path) -> None:
    submit(two_seeds, tmp_path, allow_dirty=True)
    board = tmp_path / "tiny"
    note = record_files(board)[0].with_suffix(".verified")
    note.write_text("{}")
    before = {path.name: path.read_bytes() for path in board.rglob("*") if path.is_file()}
    assert submit(two_seeds, tmp_path, allow_dirty=True) == (board, 0)
    assert {path.name: path.read_bytes() for path in board.rglob("*") if path.is_file()} == before


def test_other_settings_are_refused_and_nothing_is_written(two_seeds: Path, tmp_path: Path) -> None:
    submit(part_of(two_seeds, tmp_path / "first", 0), tmp_path / "to", allow_dirty=True)
    board = tmp_path / "to" / "tiny"
    for path in record_files(board):  # as if its suite had said so
        data = json.loads(path.read_text())
        data["cell"]["training"]["training"]["rounds"] = 7
        write_text(path, json.dumps(data))
    before = {path.name: path.read_bytes() for path in board.iterdir() if path.is_file()}
    second = part_of(two_seeds, tmp_path / "second", 1, of_other=0)
    with pytest.raises(UserError, match=r"training.rounds of the defense 'fedsgd' is 7 there and 2 in this run"):
        submit(second, tmp_path / "to", allow_dirty=True)
    assert {path.name: path.read_bytes() for path in board.iterdir() if path.is_file()} == before


def test_a_run_without_a_whole_group_is_refused(two_seeds: Path, tmp_path: Path) -> None:
    part = part_of(two_seeds, tmp_path / "part", 5)  # nobody's seed: all but one cell are gone
    with pytest.raises(UserError, match=r"5 of 6 cells are not there yet: finish the run first"):
        submit(part, tmp_path / "to", allow_dirty=True)
    assert not (tmp_path / "to").exists()


def test_an_attack_that_spares_published_groups_is_refused(two_seeds: Path, tmp_path: Path) -> None:
    """One attack of seed 0 is not on the board, and the run brings seed 1 with both."""
    submit(part_of(two_seeds, tmp_path / "first", 0), tmp_path / "to", allow_dirty=True)
    board = tmp_path / "to" / "tiny"
    second = part_of(two_seeds, tmp_path / "second", 1, of_other=0)
    for path in record_files(board):
        if read_record_file(path).cell.attack.name == "loss-threshold":
            path.unlink()
    with pytest.raises(UserError, match=r"loss-threshold would be missing for fedsgd \(seed 0\)"):
        submit(second, tmp_path / "to", allow_dirty=True)
    assert seeds(board) == {0}


def test_cells_that_other_groups_have_are_waited_for() -> None:
    both = [reconstruction("a", "prior", [1.0]), membership("a", "lira"), reconstruction("b", "prior", [1.0])]
    (cell,) = lacking(both)
    assert (group_of(cell), cell.attack.label) == (Group("digits", "b", 0), "lira")
    assert lacking(both[:2]) == ()


def test_records_of_one_setting_agree() -> None:
    one, other = membership("a", "lira", seed=0), membership("a", "lira", seed=1)
    refuse_disagreement([one], [other], "x")
    changed = other.model_copy(update={"cell": other.cell.model_copy(update={"decoys": 3})})
    with pytest.raises(UserError, match=r"the number of decoys is 999 there and 3 in this run"):
        refuse_disagreement([one], [changed], "x")


def test_a_group_with_local_steps_does_not_join_a_board_without() -> None:
    one, other = reconstruction("a", seed=0), reconstruction("a", seed=1)
    spec = other.cell.training
    local = {**spec.training, "local_steps": 4, "local_batches": 1, "local_learning_rate": 0.05}
    cell = other.cell.model_copy(update={"training": spec.model_copy(update={"training": local})})
    changed = other.model_copy(update={"cell": cell})
    refuse_disagreement([one], [other], "x")
    for staying, coming in ((one, changed), (changed, one)):
        with pytest.raises(UserError, match=r"training\.local_steps"):
            refuse_disagreement([staying], [coming], "x")


def test_only_ranks_that_changed_are_logged() -> None:
    before = {("t", "a"): 1, ("t", "b"): 2, ("t", "c"): None}
    found = rank_changes(before, {("t", "a"): 1, ("t", "b"): 3, ("t", "c"): 2})
    assert [(c.defense, c.before, c.after) for c in found] == [("b", 2, 3), ("c", None, 2)]
    assert found[1].line == "c: not ranked → rank 2 (t)"
    assert rank_changes(before, before) == []
    assert RankChange(table="t", defense="d", before=1, after=None).line == "d: rank 1 → not ranked (t)"


def test_a_broken_log_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "changes.jsonl").write_text("{]\n")
    with pytest.raises(UserError, match=r"cannot be read as the log of a board"):
        read_changes(tmp_path)


def test_a_log_may_grow_but_its_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakboard.leaderboard.publishing.changes.MAX_RECORD_BYTES", 200)
    for version in range(1, 6):
        note_change(tmp_path, version, [("digits", "fedsgd", version)], 1, [])
    log = tmp_path / "changes.jsonl"
    assert log.stat().st_size > 200
    assert [change.version for change in read_changes(tmp_path)] == [1, 2, 3, 4, 5]
    log.write_text(log.read_text() + "x" * 201)
    with pytest.raises(UserError, match=r"a line of at most 200 bytes is read; line 6 is longer\.$"):
        read_changes(tmp_path)


def test_published_boards_have_whole_groups() -> None:
    for file in PUBLISHED.glob(f"*/{PUBLISHED_FILE}"):
        assert open_any(file.parent).waiting == ()
