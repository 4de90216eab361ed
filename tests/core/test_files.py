"""Files and folders that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from leakboard.core.files import locked, sweep, whole_folder, write_bytes, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.json", "ü")
    assert (tmp_path / "a" / "b" / "c.json").read_bytes() == "ü".encode()
    assert names(tmp_path / "a" / "b") == ["c.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_text(path, "old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[call], full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")

    assert path.read_text() == "old"
    assert names(tmp_path) == ["record.json"]


def test_the_new_file_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_text(path, "old")
    seen = []
    real = os.fsync

    def look(handle: int) -> None:
        seen.append(path.read_text())
        real(handle)

    monkeypatch.setattr(os, "fsync", look)
    write_bytes(path, b"new")
    assert seen == ["old"]
    assert path.read_text() == "new"


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "trainings" / "key"
    with whole_folder(target) as part:
        (part / "model").write_text("m")
        assert not target.exists()
    assert names(target) == ["model"]
    assert names(target.parent) == ["key"]


def test_an_unfinished_folder_leaves_nothing_and_the_old_one_stays(tmp_path: Path) -> None:
    target = tmp_path / "key"
    with whole_folder(target) as part:
        (part / "model").write_text("old")

    def fill() -> None:
        with whole_folder(target) as part:
            (part / "model").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert (target / "model").read_text() == "old"
    assert names(tmp_path) == ["key"]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with whole_folder(tmp_path / "key") as part:
            (part / name).touch()
    assert names(tmp_path / "key") == ["new"]


def test_sweep_removes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".record.json.999999999.part").write_text("{")
    (tmp_path / f".record.json.{10**30}.part").write_text("{")
    (tmp_path / ".key.999999999.part").mkdir()
    (tmp_path / ".key.999999999.part" / "model").touch()
    living = f".record.json.{os.getpid()}.part"
    for kept in (living, "record.json", "mine.part"):
        (tmp_path / kept).touch()

    sweep(tmp_path)
    sweep(tmp_path / "none")

    assert names(tmp_path) == sorted([living, "record.json", "mine.part"])


def test_a_lock_has_one_holder_and_falls_with_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a" / "0.lock"
    with locked(path) as first:
        assert first
        with locked(path) as second:
            assert not second
        with locked(path.with_name("1.lock")) as other:
            assert other
    with locked(path) as again:
        assert again


def test_where_nothing_can_be_written_everybody_has_the_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "file" / "0.lock") as first, locked(tmp_path / "file" / "0.lock") as second:
        assert first
        assert second
