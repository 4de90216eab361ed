"""`lb.evaluate`: names, files, classes and instances; and the same run as the command's."""

from __future__ import annotations

import json
import linecache
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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


def test_classes_and_instances_of_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    write_suite(tmp_path, training__rounds=1)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=importing_us(), capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1  # workers did not run the script again
    found = {(row["defense"], row["attack"], row["status"]) for row in json.loads(done.stdout)}
    assert found == {(name, "coin", "ok") for name in ("fedsgd", "shrunk", "shrunk (by 0.1)")}
    assert {path.name for path in (tmp_path / "run" / "plugins").iterdir()} == {"defense-shrunk.py", "attack-coin.py"}
    # the run can be taken up again from its folder, by the files that were written
    plugins = [tmp_path / "run" / "plugins" / name for name in ("defense-shrunk.py", "attack-coin.py")]
    asked = ("--defense", "shrunk", "--attack", "coin", "--plugin", *plugins, "--out", tmp_path / "run")
    again = call("run", "--suite", tmp_path / "suite.yaml", *asked)
    assert "2 cells, 2 already there" in again.began


def test_the_api_and_the_command_make_the_same_run(tiny_suite: Path, tiny_run: Path) -> None:
    before = stamps(tiny_run, "records/*")
    run = lb.evaluate(suite=tiny_suite, out=tiny_run, progress=False, keep_transcripts=True)
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


def test_ctrl_c_and_the_main_module_are_left_as_they_were(tmp_path: Path) -> None:
    main = sys.modules["__main__"]
    before = (signal.getsignal(signal.SIGINT), getattr(main, "__file__", None), main.__spec__)
    attacks = [{"name": "prior", "threats": ["server"]}]
    lb.evaluate(suite={**TINY, "attacks": attacks}, out=tmp_path / "run", workers=1, progress=False)
    assert (signal.getsignal(signal.SIGINT), getattr(main, "__file__", None), main.__spec__) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "cluster"}, "executor must be 'local' or 'ray'; given: 'cluster'"),
        ({"device": "gpu"}, "device must be 'cpu' or 'cuda'; given: 'gpu'"),
        ({"device": None}, "device must be 'cpu' or 'cuda'; given: None"),
        ({"seeds": "12"}, "seeds must be whole numbers, such as .*; given: '12'"),
        ({"seeds": [0, 1.5]}, "seeds must be whole numbers, such as .*; given: 1.5"),
        ({"seeds": [3, 4, 3]}, "seeds must differ, .* given twice: 3"),
        ({"workers": "two"}, "workers must be from 1 to 1024, a whole number; given: 'two'"),
        ({"workers": -1}, "workers must be from 1 to 1024, a whole number; given: -1"),
        ({"gpus_per_cell": "half"}, "gpus_per_cell must be from 0 to 64, .* given: 'half'"),
        ({"gpus_per_cell": 0.5}, "gpus_per_cell needs the executor ray"),
        ({"out": 5}, "out must be a path, as text or pathlib.Path; given: 5"),
        ({"plugins": None}, "plugins must be a Python file or a list of these; given: None"),
        ({"plugins": [5]}, "a file of plugins must be a path, .* given: 5"),
        ({"plugins": "none.py"}, "There is no plugin file none.py"),
        ({"lpips_weights": 5}, "lpips_weights must be a path, .* given: 5"),
        ({"attack": 3}, "`attack` takes the name of an attack, .* given: an object of int"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(lb.UserError, match=message):
        prepare(suite=TINY, **{"out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_one_seed_and_one_plugin_need_no_list(tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(SCALED.replace("FACTOR", "0.5"))
    plan = prepare(suite=TINY, out=tmp_path / "run", seeds=5, plugins=str(tmp_path / "scaled.py")).plan
    assert {job.training.seed for job in plan.trainings} == {5}
    assert {job.training.defense.label for job in plan.trainings} == {"fedsgd", "scaled"}


@pytest.mark.parametrize("given", [None, 5])
def test_what_is_no_name_is_one_sentence(given: Any, tiny_run: Path) -> None:
    with pytest.raises(lb.UserError, match=f"the name of a published board must be .*; given: {given}"):
        lb.results(given)
    with pytest.raises(lb.UserError, match=f"There is no kind of plugin '{given}'"):
        lb.plugins(given)
    with pytest.raises(lb.UserError, match=f"the folder of a run must be a path, .*; given: {given}"):
        lb.open_run(given)
    with pytest.raises(lb.UserError, match=f"A threat must be text, .*; given: {given}"):
        lb.open_run(tiny_run).view(given)


BOTH = """
from typing import ClassVar
import leakboard as lb

LEVEL = 1.0

class OneDefense(lb.Defense):
    name: ClassVar[str] = "twin"
    by: float = LEVEL

    def protect(self, me, gradient):
        return gradient

class OneAttack(lb.MembershipAttack):
    name: ClassVar[str] = "twin"

    def infer(self, knowledge, task):
        raise lb.Unsupported("never")
"""


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module without a file, with a defense and an attack of one name."""
    module = ModuleType("twins")
    monkeypatch.setitem(sys.modules, "twins", module)
    linecache.cache["<twins>"] = (len(BOTH), None, BOTH.splitlines(keepends=True), "<twins>")
    exec(compile(BOTH, "<twins>", "exec"), vars(module))
    return module


def test_a_defense_and_an_attack_of_one_name_are_two_files(twins: ModuleType, tmp_path: Path) -> None:
    prepared = prepare(vars(twins)["OneDefense"], vars(twins)["OneAttack"], TINY, out=tmp_path)
    files = {"defense-twin.py", "attack-twin.py"}
    assert {path.name for path in (tmp_path / "plugins").iterdir()} == files
    assert {Path(file).name for file in prepared.plan.cells[0].plugin_files} == files


def test_a_class_that_is_not_its_source_is_refused_and_leaves_no_file(twins: ModuleType, tmp_path: Path) -> None:
    vars(twins)["LEVEL"] = 2.0
    with pytest.raises(lb.UserError, match="OneDefense differs from its own source in parameters"):
        prepare(vars(twins)["OneDefense"], suite=TINY, out=tmp_path)
    assert list((tmp_path / "plugins").iterdir()) == []
    assert "twin" not in registry.entries("defense")


def test_a_class_that_cannot_be_written_is_one_sentence(twins: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(lb.UserError, match=r"OneDefense cannot be written to .*; `out` names another folder"):
        prepare(vars(twins)["OneDefense"], suite=TINY, out=tmp_path / "file")


def test_what_was_prepared_can_be_run(tiny_suite: Path, tiny_run: Path) -> None:
    run = lb.prepare(suite=tiny_suite, out=tiny_run, keep_transcripts=True).run(progress=False)
    assert (run.folder, len(run.records), run.missing) == (tiny_run, TINY_CELLS, 0)


def test_a_run_is_opened_with_its_plugins(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(SCALED.replace("FACTOR", "0.5"))
    assert len(lb.open_run(tiny_run, plugins=tmp_path / "scaled.py").records) == TINY_CELLS
    assert "scaled" in registry.entries("defense")


def test_the_documentation_names_every_group_of_entry_points() -> None:
    text = (registry.ROOT / "docs" / "api.md").read_text()
    assert [group for group in registry.ENTRY_POINTS if f"`{group}`" not in text] == []
