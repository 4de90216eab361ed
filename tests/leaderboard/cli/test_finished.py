"""A finished run answers at once, and only while nothing that it came from has changed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from leakboard.core.registry import ROOT
from leakboard.datasets.building_blocks.torchvision import data_root
from leakboard.leaderboard.cli import finished
from leakboard.leaderboard.cli.finished import Before, look, repeat
from leakboard.leaderboard.cli.main import build_parser
from tests.leaderboard.runs import TINY_CELLS, call


class Done:
    """A folder that looks like that of a finished run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run, self.suite, self.data = folder / "run", folder / "suite.yaml", folder / "data" / "images.npz"
        self.record, self.page = self.run / "records" / "a.json", self.run / "report" / "index.html"
        self.figure = self.page.with_name("figures") / "roc.svg"
        for path in (self.record, self.page, self.figure, self.run / "run.json", self.suite, self.data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("name: x\n")
        for path in folder.rglob("*"):  # long ago: a change must show even where the clock of the files is coarse
            os.utime(path, (1, 1))

    def args(self, *more: str) -> argparse.Namespace:
        return build_parser().parse_args(["run", "--suite", str(self.suite), "--out", str(self.run), *more])

    def look(self, *more: str, places: Sequence[str] = (), data: Sequence[Path] = ()) -> Before:
        return look(self.args(*more)).planned([str(path) for path in data or [self.data]], places)

    def remember(self, code: int = 0, before: Before | None = None) -> None:
        (before or self.look()).remember(self.run, "x: 1 cells, 1 already there", "the table", code)


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Done:
    monkeypatch.setenv("LEAKBOARD_DATA", str(tmp_path / "no data"))  # not where other tests may write meanwhile
    return Done(tmp_path)


@pytest.mark.parametrize("code", [0, 1])
def test_the_same_command_gives_the_same_answer(done: Done, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    done.remember(code)
    assert repeat(done.args()) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("the table\n", "x: 1 cells, 1 already there\n")


def test_how_many_compute_it_does_not_matter(done: Done) -> None:
    done.remember()
    assert repeat(done.args("--workers", "2")) == 0


def touched(path: Path) -> None:
    path.write_text("name: other\n")


INPUTS: dict[str, Callable[[Done], object]] = {
    "suite": lambda d: touched(d.suite),
    "data": lambda d: d.data.write_text("more"),
    "data added": lambda d: (d.data.parent / "another.npz").touch(),
    "data gone": lambda d: d.data.unlink(),
}
CHANGES: dict[str, Callable[[Done], object]] = {
    **INPUTS,
    "record": lambda d: d.record.write_text("{}"),
    "record added": lambda d: (d.record.parent / "b.json").touch(),
    "records gone": lambda d: d.record.unlink(),
    "page gone": lambda d: d.page.unlink(),
    "figure gone": lambda d: d.figure.unlink(),
    "plan": lambda d: (d.run / "run.json").write_text("{}"),
    "nonsense": lambda d: (d.run / finished.NAME).write_text("[]"),
    "half": lambda d: (d.run / finished.NAME).write_text(json.dumps({"inputs": "x"})),
    "deep": lambda d: (d.run / finished.NAME).write_text("[" * 100_000),
    "nothing kept": lambda d: (d.run / finished.NAME).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_means_a_real_run(done: Done, change: str) -> None:
    done.remember()
    assert repeat(done.args()) == 0
    CHANGES[change](done)
    assert repeat(done.args()) is None


@pytest.mark.parametrize("change", INPUTS)
def test_what_changes_during_a_run_leaves_nothing_behind(done: Done, change: str) -> None:
    """The answer came from what was there before: it must not stand for what is there now."""
    before = done.look()
    INPUTS[change](done)
    done.remember(before=before)
    assert not (done.run / finished.NAME).exists()


@pytest.mark.parametrize("more", ["--dry-run", "--retry-failed", "--fresh-keys", "--download", "--seed=3"])
def test_another_question_means_a_real_run(done: Done, more: str) -> None:
    done.remember()
    assert repeat(done.args(more)) is None


@pytest.mark.parametrize(
    "more", ["--workers=-5", "--workers=2000", "--gpus-per-cell=0.5", "--executor=ray", "--plugin=x"]
)
def test_what_the_command_would_refuse_or_look_at_is_left_to_it(done: Done, more: str) -> None:
    done.remember()
    assert repeat(done.args(more)) is None


def test_what_files_alone_do_not_tell_is_not_kept(done: Done) -> None:
    many = [done.data.parent / f"{n}.png" for n in range(finished.MOST_FILES + 1)]
    for path in many:
        path.touch()
    for before in (done.look("--plugin", "own.py"), done.look(places=["", "net.py:Net"]), done.look(data=many)):
        done.remember(before=before)
        assert not (done.run / finished.NAME).exists()
    done.remember(before=done.look(places=["", ""]))
    assert (done.run / finished.NAME).exists()


def test_a_link_that_leads_elsewhere_means_a_real_run(done: Done) -> None:
    other, link = done.data.with_name("other.npz"), done.folder / "current.npz"
    os.link(done.data, other)  # the same content, size and time
    link.symlink_to(done.data)
    done.remember(before=done.look(data=[link]))
    assert repeat(done.args()) == 0
    link.unlink()
    link.symlink_to(other)
    assert repeat(done.args()) is None


@pytest.mark.parametrize("named", [True, False])
def test_a_link_among_the_data_that_leads_elsewhere_means_a_real_run(
    done: Done, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Planning tells the files that were read by where they really lie; the link to them is in the data's folder."""
    home = done.folder / "home"
    root = done.folder / "data root"
    if named:
        monkeypatch.setenv("LEAKBOARD_DATA", str(root))
    else:
        monkeypatch.delenv("LEAKBOARD_DATA", raising=False)
        monkeypatch.setenv("HOME", str(home))
        root = data_root("")
        assert root.is_relative_to(home)
    root.mkdir(parents=True)
    link, other = root / "breakhis", done.folder / "other"
    other.mkdir()
    link.symlink_to(done.data.parent)
    done.remember()
    assert repeat(done.args()) == 0
    link.unlink()
    link.symlink_to(other)
    assert repeat(done.args()) is None


def test_a_suite_that_changes_while_it_is_planned_leaves_nothing_behind(done: Done) -> None:
    begun = look(done.args())
    touched(done.suite)
    done.remember(before=begun.planned([str(done.data)], ()))
    assert not (done.run / finished.NAME).exists()


def test_data_from_elsewhere_means_a_real_run(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that it came from are as they were, but they are no longer the ones that are asked for."""
    monkeypatch.setenv("LEAKBOARD_DATA", "here")
    done.remember()
    assert repeat(done.args()) == 0
    monkeypatch.setenv("LEAKBOARD_DATA", "there")
    assert repeat(done.args()) is None


def test_another_working_folder_means_a_real_run(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    done.remember()
    monkeypatch.chdir(done.folder)
    assert repeat(done.args()) is None


def test_changed_code_means_a_real_run(done: Done, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # prepare: a checkout of its own
    module = tmp_path / "checkout" / "core" / "module.py"
    (tmp_path / "checkout" / "leaderboard" / "page" / "assets").mkdir(parents=True)
    module.parent.mkdir()
    module.write_text("x = 1")
    monkeypatch.setattr(finished, "ROOT", tmp_path / "checkout")
    done.remember()
    assert repeat(done.args()) == 0
    # execute and assert
    module.write_text("x = 23")
    assert repeat(done.args()) is None


def test_the_folder_of_a_suite_is_found_without_reading_it_all() -> None:
    args = build_parser().parse_args(["run", "--suite", "quick"])
    assert finished._folder(args) == Path("runs") / "quick"


@pytest.mark.slow
def test_a_second_run_needs_no_torch(tiny_suite: Path, tiny_run: Path) -> None:
    code = (
        "import sys; from leakboard.leaderboard.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(77 if 'torch' in sys.modules else code)"
    )
    first = call("table", "--out", tiny_run)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, "run", "--suite", str(tiny_suite), "--out", str(tiny_run)],
            cwd=ROOT,
            env=dict(os.environ),  # as Python knows it: pytest's readline sets COLUMNS behind its back
            capture_output=True,
            text=True,
        )

    run()  # whichever test made the run may have been in another folder
    again = run()
    assert again.returncode == 0, again.stderr
    assert f"{TINY_CELLS} cells, {TINY_CELLS} already there" in again.stderr
    assert first.out.strip() in again.stdout
    assert again.stdout.endswith(f"page: {tiny_run / 'report' / 'index.html'}\n")
