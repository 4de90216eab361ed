"""Shadow models go from the cache to a board and into the cache of somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakboard.attacks.membership.building_blocks.shadows import FOLDER
from leakboard.core.errors import UserError
from leakboard.leaderboard.engine.worker import log_file
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.leaderboard.publishing import replays, shadow_pools
from leakboard.leaderboard.publishing.replays import SHADOWS
from leakboard.leaderboard.publishing.shadow_pools import get_pools, publish_pools, remove_unused_pools, used_pools
from leakboard.leaderboard.publishing.submit import submit
from tests.leaderboard.runs import call


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("*/*.safetensors") if not p.parent.is_symlink()
    }


@pytest.fixture
def jobs(tiny_run: Path) -> tuple[Job, ...]:
    return tuple(open_run(tiny_run).jobs)


@pytest.fixture
def board(jobs: tuple[Job, ...], tmp_path: Path) -> Path:
    """A board with the pool of the attack `shadow`."""
    trained = {job.training_key for job in jobs}
    assert publish_pools(tmp_path / "board", jobs, trained) == (1, 1)
    return tmp_path / "board"


def test_a_pool_goes_to_a_board_and_to_another_cache(jobs: tuple[Job, ...], board: Path, tmp_path: Path) -> None:
    ((key, trainings),) = used_pools(jobs).items()
    original = FOLDER / key / "0.safetensors"
    assert (board / SHADOWS / key / "0.safetensors").read_bytes() == original.read_bytes()
    assert trainings == {jobs[0].training_key}
    assert get_pools(board, tmp_path / "cache") == (1, 1)
    assert files_of(tmp_path / "cache") == files_of(board / SHADOWS)
    assert get_pools(board, tmp_path / "cache") == (0, 0)
    assert publish_pools(board, jobs, trainings) == (1, 1)  # what is there stays
    remove_unused_pools(board, trainings)
    assert files_of(board / SHADOWS)
    remove_unused_pools(board, set())
    assert not list((board / SHADOWS).iterdir())


def test_pools_of_other_trainings_and_too_many_bytes_are_not_published(
    jobs: tuple[Job, ...], board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish_pools(tmp_path / "other", jobs, {"f" * 64}) == (0, 0)
    assert replays.board_size(board) > 100
    monkeypatch.setattr(shadow_pools, "MOST_BOARD", 100)
    with pytest.raises(UserError, match=r"would have 0\.\d MB; at most 0.0001 MB"):
        publish_pools(tmp_path / "other", jobs, {jobs[0].training_key})
    with pytest.raises(UserError, match=r"at most 100 bytes"):
        get_pools(board, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_only_files_of_models_are_taken(board: Path, tmp_path: Path) -> None:
    (pool,) = (board / SHADOWS).iterdir()
    (pool / "1.safetensors").symlink_to(pool / "0.safetensors")
    (pool / "x.safetensors").write_text("x")
    (pool / "plugin.py").write_text("x")
    (board / SHADOWS / ("a" * 64)).symlink_to(pool)
    (board / SHADOWS / "..x").mkdir()
    assert get_pools(board, tmp_path / "cache") == (1, 1)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["0.safetensors"]


def test_what_is_no_pool_is_left_alone_and_stray_files_go_with_an_unused_pool(board: Path) -> None:
    (pool,) = (board / SHADOWS).iterdir()
    (pool / ".DS_Store").write_text("x")
    (board / SHADOWS / "note.txt").write_text("x")
    (board / SHADOWS / ("b" * 64)).symlink_to(board)
    remove_unused_pools(board, ())
    assert sorted(path.name for path in (board / SHADOWS).iterdir()) == ["b" * 64, "note.txt"]
    assert board.is_dir()


def test_a_log_that_names_no_key_gives_no_pool(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    job = next(job for job in jobs if job.cell is not None).model_copy(update={"run": str(tmp_path)})
    log_file(job).parent.mkdir()
    log_file(job).write_text("shadow pool ../../x\nshadow pool " + "A" * 64 + "\n")
    assert used_pools([job]) == {}


def test_the_commands(tiny_run: Path, tmp_path: Path) -> None:
    board, _ = submit(tiny_run, tmp_path, allow_dirty=True)
    said = call("shadows", "publish", tiny_run, board)
    assert (said.code, said.out) == (0, "1 shadow models of 1 pools are on the board.\n"), said.err
    assert len(files_of(board / SHADOWS)) == 1
    said = call("shadows", "get", board)
    assert said.code == 0
    assert "0 shadow models of 0 pools went to the cache. Nobody has checked them" in said.out  # they come from there
    said = call("shadows", "publish", tiny_run)
    assert said.code == 2
    assert "leakboard shadows publish RUN BOARD" in said.err
