"""The engine by itself, with an executor that only pretends: what is started when, what is written, who may work."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.leaderboard.cells.training_progress import TrainingProgress, progress_file
from leakboard.leaderboard.engine import engine as engine_module
from leakboard.leaderboard.engine import state, status
from leakboard.leaderboard.engine.engine import Engine, read_record
from leakboard.leaderboard.engine.executors import memory
from leakboard.leaderboard.engine.executors.base import End, Executor, Running
from leakboard.leaderboard.engine.executors.cluster import code_digest, work_here
from leakboard.leaderboard.engine.executors.memory import resident
from leakboard.leaderboard.engine.schedule import QUICK, estimate_ours
from leakboard.leaderboard.engine.state import StateFile, is_worked_on, only_engine, running_trainings
from leakboard.leaderboard.engine.status import describe
from leakboard.leaderboard.planning.estimate import estimate
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan
from leakboard.leaderboard.planning.run_folder import save_run
from leakboard.leaderboard.records.record import Record
from leakboard.suites.schema import load_suite
from tests.leaderboard.plugin_texts import CONSTANT
from tests.leaderboard.runs import call, forget_plugins, write_suite
from tests.leaderboard.synthetic import summary

LONG = {"name": "fedsgd", "label": "long", "training": {"rounds": 40}}
PRIOR = {"name": "prior", "threats": ["server"]}


class Pretender(Executor):
    """Ends every job at once; those whose title holds `dies` leave nothing."""

    name: ClassVar[str] = "pretender"

    def __init__(self, dies: str = "nobody") -> None:
        self.slots, self.dies = 1, dies
        self.started: list[Job] = []
        self._running: list[Running] = []

    @property
    def running(self) -> Sequence[Running]:
        return self._running

    def start(self, job: Job) -> None:
        self.started.append(job)
        self._running.append(Running(job))

    def wait(self) -> list[End]:
        jobs = [running.job for running in self._running]
        self._running.clear()
        for job in jobs:
            if self.dies in job.title:
                continue
            if job.cell is None:
                job.training_folder.mkdir(parents=True)
            else:
                record = Record(key=job.key, ingredients=job.ingredients, cell=job.cell, status="ok")
                write_text(job.record_file, record.to_json())
        return [End(job, "crashed", "its process died") for job in jobs]

    def stop(self) -> None:
        self._running.clear()


def make(folder: Path, **changes: Any) -> Plan:
    """A plan of two trainings, the second ten times as long, with two cells each."""
    changes = {"defenses": ["fedsgd", LONG], "attacks": [PRIOR], **changes}
    return make_plan(load_suite(str(write_suite(folder, **changes))), Options(folder / "run"))


def quiet(engine: Engine, line: str) -> None:
    """Nobody listens."""


def label(job: Job) -> str:
    return job.training.defense.label


def test_trainings_come_first_the_control_s_before_the_longest_and_each_once(tmp_path: Path) -> None:
    plan = make(tmp_path, seeds=[0, 1])
    executor = Pretender()
    engine = Engine(plan, executor, quiet)
    engine.order(estimate(plan))

    report = engine.run()

    trainings, cells = executor.started[:4], executor.started[4:]
    assert [(label(job), job.training.seed) for job in trainings] == [
        ("fedsgd", 0),
        ("long", 0),
        ("long", 1),
        ("fedsgd", 1),
    ]
    assert all(job.cell is None for job in trainings)
    assert sorted(job.key for job in cells) == sorted(job.key for job in plan.cells)
    assert (report.trained, report.counts) == (4, {"ok": 8})


def test_quick_attacks_on_the_control_run_before_the_other_trainings(tmp_path: Path) -> None:
    threshold = {"name": "loss-threshold", "threats": ["client"]}
    plan = make(tmp_path, attacks=[PRIOR, {"name": "inverting-gradients", "threats": ["server"]}, threshold])
    seconds = {job.key: 5.0 if job.title.startswith("inverting") else 1.0 for job in plan.cells}
    seconds |= {job.training_key: 100.0 if label(job) == "long" else 10.0 for job in plan.trainings}
    executor = Pretender()
    engine = Engine(plan, executor, quiet)
    engine.order(seconds)
    engine.run()

    def what(job: Job) -> str:
        return "training" if job.cell is None else job.cell.attack.label

    first = [(label(job), what(job)) for job in executor.started[:4]]
    assert first == [  # one per question, the quickest first; a guess is no result
        ("fedsgd", "training"),
        ("fedsgd", "loss-threshold"),
        ("fedsgd", "inverting-gradients"),
        ("long", "training"),
    ]
    keys = [job.key or job.training_key for job in executor.started]
    assert len(keys) == len(set(keys)) == len(plan.trainings) + len(plan.cells)


def test_a_slow_attack_is_no_first_result(tmp_path: Path) -> None:
    plan = make(tmp_path, attacks=[PRIOR, {"name": "loss-threshold", "threats": ["client"]}])
    executor = Pretender()
    engine = Engine(plan, executor, quiet)
    engine.order({job.key: QUICK for job in plan.cells})
    engine.run()
    assert [job.cell for job in executor.started[:2]] == [None, None]


def test_a_finished_cell_is_told_by_its_main_score(tmp_path: Path) -> None:
    lines: list[str] = []
    plan = make(tmp_path)
    Engine(plan, Pretender(), lambda engine, line: lines.append(line), headline=lambda record: "it leaks").run()
    assert lines.count("it leaks") == len(plan.cells)
    lines.clear()
    other = tmp_path / "other"
    other.mkdir()
    Engine(make(other), Pretender(), lambda engine, line: lines.append(line)).run()
    assert sum(line.startswith("ok       prior on") for line in lines) == len(plan.cells)


def test_the_first_job_does_not_wait_for_the_estimate_the_others_follow_it(tmp_path: Path) -> None:
    plan = make(tmp_path, seeds=[0, 1])
    executor = Pretender()
    looks = iter([None, estimate(plan)])
    Engine(plan, executor, quiet).run(lambda: next(looks, None))
    assert [label(job) for job in executor.started[:4]] == ["fedsgd", "long", "long", "fedsgd"]


def test_what_is_not_estimated_keeps_the_order_of_the_plan(tmp_path: Path) -> None:
    plan = make(tmp_path)
    executor = Pretender()
    engine = Engine(plan, executor, quiet)
    engine.order({})
    engine.run()
    assert executor.started == [*plan.trainings, *plan.cells]


def test_a_training_that_no_cell_waits_for_is_not_run(tmp_path: Path) -> None:
    plan = make(tmp_path)
    Engine(plan, Pretender(), quiet).run()
    for job in plan.trainings:
        job.training_folder.rmdir()
    for job in plan.cells:
        if label(job) == "long":
            job.record_file.unlink()

    again = Pretender()
    Engine(plan, again, quiet).run()

    assert {label(job) for job in again.started} == {"long"}
    assert [job.cell is None for job in again.started] == [True, False, False]


def test_a_record_that_cannot_be_written_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, lines = make(tmp_path), []

    def full(path: Path, text: str) -> None:
        if "records" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_text(path, text)

    monkeypatch.setattr(engine_module, "write_text", full)
    monkeypatch.setattr(engine_module, "load_summary", lambda folder: summary("x", 0, 0.5))
    report = Engine(plan, Pretender(dies="long / server (first"), lambda engine, line: lines.append(line)).run()

    assert (report.unwritten, report.broken, report.counts) == (1, 1, {"ok": 3})
    (told,) = [line for line in lines if line.startswith("no record")]
    assert told.endswith("its process died; it cannot be written: No space left on device")


def test_a_failed_record_that_is_tried_again_does_not_pass_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "load_summary", lambda folder: summary("x", 0, 0.5))
    plan = make(tmp_path)
    Engine(plan, Pretender(), quiet).run()
    job = plan.cells[0]
    assert job.cell is not None
    old = Record(key=job.key, ingredients=job.ingredients, cell=job.cell, status="failed", reason="the old reason")
    write_text(job.record_file, old.to_json())

    again = Pretender(dies=job.title)
    report = Engine(plan, again, quiet, retry_failed=True).run()

    assert again.started == [job]
    assert report.counts == {"ok": 3, "crashed": 1}
    record = read_record(job)
    assert record is not None
    assert (record.status, record.reason) == ("crashed", "its process died")


# --- two engines, and who asks how it goes ---------------------------------------------------------------------


def test_a_second_engine_in_the_same_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "TRIES", 1)
    StateFile(tmp_path, Pretender()).note(())
    with only_engine(tmp_path):
        assert is_worked_on(tmp_path)
        with pytest.raises(UserError, match=f"Another run \\(process {os.getpid()} on .*--out"), only_engine(tmp_path):
            pass
    assert not is_worked_on(tmp_path)
    with only_engine(tmp_path):
        pass


def test_the_status_of_a_run_at_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, folder = make(tmp_path), tmp_path / "run"
    save_run(folder, plan, {job.key or job.training_key: 60.0 for job in (*plan.trainings, *plan.cells)})
    at_first = describe(folder)
    assert "tiny in" in at_first
    assert ": stopped" in at_first
    assert "cells      0 of 4\n" in at_first
    assert "left       4 cells, about 6 min 0 s" in at_first

    job = plan.trainings[1]
    monkeypatch.setattr(state, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: 1085.0))
    with only_engine(folder):
        StateFile(folder, Pretender()).note([Running(job, since=1010.0)])
        under_way = describe(folder)
    assert f"running for 1 min 25 s (process {os.getpid()} on " in under_way
    assert f"  1 min 15 s  {job.title}" in under_way
    assert "about 5 min 0 s" in under_way  # the running one is past its estimate

    killed = describe(folder)  # the lock fell, but nobody cleared the file
    assert f"were running when it was killed:\n  {job.title}" in killed
    assert "goes on from here" in killed

    Engine(plan, Pretender(), quiet).run()
    cell = plan.cells[-1]
    assert cell.cell is not None
    bad = Record(key=cell.key, ingredients=cell.ingredients, cell=cell.cell, status="crashed", reason="out of ink")
    write_text(cell.record_file, bad.to_json())
    finished = describe(folder)
    assert ": finished" in finished
    assert "trainings  2 of 2" in finished
    assert "cells      4 of 4: 3 ok, 1 crashed" in finished
    assert f"crashed  {cell.title}: out of ink" in finished
    assert "--retry-failed" in finished
    assert "left" not in finished


def test_the_status_says_how_a_running_training_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, folder = make(tmp_path), tmp_path / "run"
    save_run(folder, plan, {job.key or job.training_key: 60.0 for job in (*plan.trainings, *plan.cells)})
    job = plan.trainings[1]
    going = TrainingProgress(round=3, rounds=4, accuracy=0.5, loss=0.25, images=90, seconds_left=30.0, written=1050.0)
    monkeypatch.setattr(state, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: 1085.0))
    write_text(progress_file(job.training_folder), going.model_dump_json())
    with only_engine(folder):
        StateFile(folder, Pretender()).note([Running(job, since=1010.0)])
        under_way = describe(folder)
        StateFile(folder, Pretender()).note([Running(job, since=1060.0)])
        begun_again = describe(folder)
    said = "round 3 of 4, test accuracy 50.0 % and loss 0.25 (90 images)"
    assert f"  1 min 15 s  {job.title}: {said}, about 30 s left" in under_way
    assert "left       4 cells, about 5 min 30 s" in under_way  # what the training says counts more than the estimate
    assert f"       25 s  {job.title}\n" in begun_again + "\n"  # an earlier attempt said this
    assert running_trainings(folder, {job.training_key: 1010.0}) == {job.training_key: going}

    StateFile(folder, Pretender()).note([Running(job, since=1010.0)])
    assert f"were running when it was killed:\n  {job.title}: {said}\n" in describe(folder)


def test_the_status_changes_nothing(tmp_path: Path) -> None:
    plan, folder = make(tmp_path), tmp_path / "run"
    save_run(folder, plan, {})
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    describe(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_status_of_no_run_is_one_sentence(tmp_path: Path) -> None:
    outcome = call("status", "--out", tmp_path / "nowhere")
    assert outcome.code == 2
    assert outcome.err.startswith("run_benchmark.py: There is no run in ")
    assert len(outcome.err.splitlines()) == 1


# --- what may go wrong around it -------------------------------------------------------------------------------


DEADLY = """
import os
from torch import nn

class Deadly(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[0] * shape[1] * shape[2], classes)
    def forward(self, images):
        if images.any():  # the plan tries it on zeros
            os._exit(9)
        return super().forward(images.flatten(1))
"""


def test_a_model_from_outside_is_not_run_for_an_estimate(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    plan = make(tmp_path, model=f"module:{tmp_path}/deadly.py:Deadly")
    assert estimate_ours(plan) == {}  # this process would have ended


def test_an_attack_from_outside_is_not_asked_for_an_estimate(tmp_path: Path) -> None:
    hanging = "    def work(self, problems):\n        while True:\n            pass\n"
    (tmp_path / "constant.py").write_text(CONSTANT.replace("VALUE", "1.0") + hanging)
    registry.load_file(tmp_path / "constant.py")
    plan = make(tmp_path, attacks=[{"name": "constant", "threats": ["client"]}])
    trainings = {job.key or job.training_key for job in plan.trainings}
    try:
        assert set(estimate_ours(plan)) == trainings
    finally:
        forget_plugins()


def test_the_estimate_has_every_job(tmp_path: Path) -> None:
    plan = make(tmp_path)
    assert set(estimate_ours(plan)) == {job.key or job.training_key for job in (*plan.trainings, *plan.cells)}


def test_the_memory_of_a_process_is_that_of_its_descendants_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A /proc of the test's own, as proc(5) says that it looks: real figures change while one looks at them."""
    monkeypatch.setattr(memory, "PROC", tmp_path)
    family = {7: (100, {7: "8 9", 17: "10"}), 8: (20, {8: ""}), 9: (3, {9: "11"}), 10: (4000, {10: ""})}  # 11 is gone
    for process, (pages, threads) in family.items():
        for thread, children in threads.items():
            (tmp_path / str(process) / "task" / str(thread)).mkdir(parents=True)
            (tmp_path / str(process) / "task" / str(thread) / "children").write_text(f"{children} ")
        (tmp_path / str(process) / "statm").write_text(f"99999 {pages} 50 1 0 60 0\n")
    page = os.sysconf("SC_PAGE_SIZE")
    assert [resident(process) for process in (7, 9, 11)] == [4123 * page, 3 * page, 0]


def test_the_memory_of_a_real_process_is_known_and_none_is_held_by_nobody() -> None:
    assert resident(os.getpid()) > 0  # how much of it is in memory is the kernel's choice
    assert resident(2**22 + 1) == 0


def test_ray_that_is_not_installed_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = call("run", "--suite", write_suite(tmp_path), "--out", tmp_path / "run", "--executor", "ray")
    assert outcome.code == 2
    assert "pip install -r requirements-ray.txt" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--gpus-per-cell", "0.5"), "gpus_per_cell needs the executor ray"),
        (("--executor", "ray", "--gpus-per-cell", "-1"), "must be from 0 to 64"),
        (("--executor", "slurm"), "invalid choice: 'slurm'"),
    ],
)
def test_a_wrong_executor_or_share_is_refused(tmp_path: Path, given: tuple[str, ...], expected: str) -> None:
    outcome = call("run", "--suite", write_suite(tmp_path), "--out", tmp_path / "run", *given)
    assert outcome.code == 2
    assert expected in outcome.err


def test_a_machine_with_other_code_refuses_its_jobs(tmp_path: Path) -> None:
    assert code_digest() == code_digest()
    with pytest.raises(UserError, match="other code or other package versions"):
        work_here("", 1.0, str(tmp_path), "the digest of other code")
