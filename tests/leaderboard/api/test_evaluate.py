"""`lb.evaluate`: names, files, classes and instances; and the same run as the command's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leakboard as lb
from leakboard.core import registry
from leakboard.core.registry import importing_us
from leakboard.defenses.clip import Clip
from leakboard.leaderboard.api.evaluate import prepare
from leakboard.leaderboard.api.given import Given, choose
from leakboard.suites.schema import load_suite
from tests.leaderboard.plugin_texts import CONSTANT, SCALED
from tests.leaderboard.runs import HANG, TINY, TINY_CELLS, call, forget_plugins, stamps, write_suite

SCRIPT = '''
from typing import ClassVar

import torch
from pydantic import Field

import leakboard as lb

HALF = 0.5

def scaled(value: torch.Tensor, by: float) -> torch.Tensor:
    return value * by * HALF

class Shrunk(lb.Defense):
    """Each client sends a part of its gradient."""

    name: ClassVar[str] = "shrunk"
    by: float = Field(1.0, gt=0)

    def protect(self, me, gradient):
        return {name: scaled(value, self.by) for name, value in gradient.items()}

class Coin(lb.MembershipAttack):
    """Everybody is a member."""

    name: ClassVar[str] = "coin"

    def infer(self, knowledge, task):
        scores = torch.ones(len(task.candidates))
        return lb.MembershipAnswer(scores, scores > 0)

run = lb.evaluate([Shrunk, Shrunk(by=0.1)], Coin(), suite="suite.yaml", out="run", workers=2)
frame = run.frame()
print(frame[["defense", "attack", "status"]].drop_duplicates().to_json(orient="records"))
'''


@pytest.fixture(autouse=True)
def no_plugins() -> Iterator[None]:
    yield
    forget_plugins()


@pytest.mark.slow
def test_classes_and_instances_of_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    write_suite(tmp_path, training__rounds=1)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=importing_us(), capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1  # workers did not run the script again
    found = {(row["defense"], row["attack"], row["status"]) for row in json.loads(done.stdout)}
    assert found == {(name, "coin", "ok") for name in ("fedsgd", "shrunk", "shrunk (by 0.1)")}
    assert {path.name for path in (tmp_path / "run" / "plugins").iterdir()} == {"shrunk.py", "coin.py"}
    # the run can be taken up again from its folder, by the files that were written
    plugins = [tmp_path / "run" / "plugins" / name for name in ("shrunk.py", "coin.py")]
    asked = ("--defense", "shrunk", "--attack", "coin", "--plugin", *plugins, "--out", tmp_path / "run")
    again = call("run", "--suite", tmp_path / "suite.yaml", *asked)
    assert "2 cells, 2 already there" in again.began


def test_the_api_and_the_command_make_the_same_run(tiny_suite: Path, tiny_run: Path) -> None:
    before = stamps(tiny_run, "records/*")
    run = lb.evaluate(suite=tiny_suite, out=tiny_run, progress=False)
    assert len(run.records) == TINY_CELLS
    assert run.missing == 0
    assert stamps(tiny_run, "records/*") == before  # nothing was computed again
    assert run.complaints() == []
    assert repr(run) == f"<Run tiny in {tiny_run}: {TINY_CELLS} records>"


def test_a_suite_may_be_a_mapping(tmp_path: Path) -> None:
    prepared = prepare(suite=TINY, out=tmp_path / "run")
    assert [job.key for job in prepared.plan.cells] == [
        job.key for job in prepare(suite=write_suite(tmp_path), out=tmp_path / "run").plan.cells
    ]
    assert not (tmp_path / "run").exists()
    with pytest.raises(lb.UserError, match=r"The suite has no setting 'atacks': did you mean 'attacks'\?"):
        prepare(suite={**TINY, "atacks": []})


def test_files_names_and_instances_become_rows(tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(SCALED.replace("FACTOR", "0.5"))
    (tmp_path / "constant.py").write_text(CONSTANT.replace("VALUE", "1.0"))
    given: list[Given] = [tmp_path / "scaled.py", "mp", Clip(clip=3.0), Clip()]

    plan = prepare(given, tmp_path / "constant.py", TINY, out=tmp_path / "run").plan

    rows = {job.training.defense.label: job.training.defense for job in plan.trainings}
    assert set(rows) == {"fedsgd", "scaled", "mp", "clip (clip 3.0)", "clip"}
    assert rows["clip (clip 3.0)"].parameters["clip"] == 3.0
    assert {job.cell.attack.label for job in plan.cells if job.cell} == {"constant"}
    assert set(plan.trainings[0].plugin_files) == {str(tmp_path / "scaled.py"), str(tmp_path / "constant.py")}


def test_an_instance_gets_a_row_beside_one_of_the_same_name(tmp_path: Path) -> None:
    titles = [row.title for row in load_suite(str(write_suite(tmp_path, defenses=["fedsgd", "clip"]))).defenses]
    chosen = choose("defense", [Clip(), Clip(clip=0.5), Clip(clip=0.5)], tmp_path, titles)
    assert chosen.labels == ["clip 2", "clip (clip 0.5)", "clip (clip 0.5) 2"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "`defense` takes the name of a defense, a Python file, a class .* given: an object of int"),
        (dict, "given: the class dict"),
        (lb.Defense, "given: the class Defense"),
        ("fedsdg", "did you mean 'fedsgd'"),
        ("none.py", "There is no plugin file none.py"),
    ],
)
def test_what_is_no_defense_is_one_sentence(given: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(lb.UserError, match=message):
        prepare(given, suite=TINY, out=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_file_of_another_kind_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(CONSTANT.replace("VALUE", "1.0"))
    with pytest.raises(lb.UserError, match=r"constant.py defines no defense: plugins of other kinds"):
        prepare(tmp_path / "constant.py", suite=TINY)


def test_a_changed_file_is_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "scaled.py"
    summaries = []
    for factor, said in (("0.5", "half"), ("1", "all")):
        file.write_text(SCALED.replace("FACTOR", factor).replace("a part", said))
        registry.load_file(file)
        summaries.append(registry.load("defense", "scaled").summary())
    assert summaries == ["Sends half of the gradient.", "Sends all of the gradient."]


@pytest.mark.slow
def test_ctrl_c_and_the_main_module_are_left_as_they_were(tmp_path: Path) -> None:
    main = sys.modules["__main__"]
    before = (signal.getsignal(signal.SIGINT), getattr(main, "__file__", None), main.__spec__)
    attacks = [{"name": "prior", "threats": ["server"]}]
    lb.evaluate(suite={**TINY, "attacks": attacks}, out=tmp_path / "run", workers=1, progress=False)
    assert (signal.getsignal(signal.SIGINT), getattr(main, "__file__", None), main.__spec__) == before
