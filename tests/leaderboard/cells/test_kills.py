"""Every defense is killed twice at random moments: its training and its records are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from leakboard.core.seeds import derive_seed
from leakboard.leaderboard.cells.checkpoints import checkpoint_folder
from leakboard.leaderboard.cells.train import run_training
from leakboard.leaderboard.engine.engine import Engine
from leakboard.leaderboard.engine.executors.local import LocalExecutor
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, Plan, make_plan
from leakboard.leaderboard.planning.run_folder import read_record_file
from leakboard.suites.schema import load_suite
from tests.contract.plugins import defenses, title
from tests.leaderboard.cells.test_checkpoints import contents
from tests.leaderboard.runs import write_suite

ROUNDS, KILLS = 10, 2
#: rows in which client 1 vanishes in two rounds, before the client's last step
WITH_DROPOUTS = ("fedsgd", "mp-dp", "secagg", "skellam")
ATTACKS = [
    {"name": "inverting-gradients", "threats": ["server"], "params": {"iterations": 1}},
    {"name": "loss-threshold", "threats": ["client"]},
]


def rows() -> list[dict[str, Any]]:
    """Every defense that there is with small parameters, and some of them once more with dropouts.

    Real encryption takes minutes of processor time. The contract kills those variants without a run around them.
    """
    found: list[dict[str, Any]] = []
    for defense in (one for one in defenses() if one.parameters().get("crypto") != "real"):
        row = {"name": defense.name, "label": title(defense), "params": defense.model_dump(exclude_defaults=True)}
        found.append(row)
        if title(defense) == title(type(defense)()) and defense.name in WITH_DROPOUTS:
            step = next(s.name for s in reversed(defense.protocol()) if s.role == "client")
            drops = [{"client": 1, "round": index, "step": step} for index in (3, 6)]
            found.append({**row, "label": f"{defense.name}-dropouts", "training": {"dropouts": drops}})
    return found


def killed_after(job: Job, seconds: float) -> bool:
    """Train in a process that ends after so many seconds of its own processor time; False if it was done before.

    The timer's signal ends the process where it is, as `kill -9` does: no line of Python runs after it. Processor time
    does not depend on how busy the machine is.
    """
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            run_training(job)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGVTALRM)
    return status != 0


def kill_twice(job: Job, whole_seconds: float) -> None:
    """Two kills at seeded random moments, the second one after the training went on."""
    lots = random.Random(derive_seed("two kills", job.training.defense.label))
    moments = [lots.uniform(0, 0.9), lots.uniform(0, 0.5)]
    while not all(killed_after(job, share * whole_seconds + 1e-3) for share in moments):
        # the second life was over before its kill: the same again, with earlier ones
        for folder in (job.training_folder, checkpoint_folder(job.training_folder)):
            shutil.rmtree(folder, ignore_errors=True)
        moments = [share / 2 for share in moments]


def compute(plan: Plan) -> dict[str, dict[str, Any]]:
    """The records of a plan; trainings that are there are not run again."""
    engine = Engine(plan, LocalExecutor(1, plan.suite.memory_limit), lambda engine, line: None)
    engine.run()
    return {job.cell.slug: read_record_file(job.record_file).comparable() for job in plan.cells if job.cell}


@pytest.mark.slow
def test_two_kills_of_every_defense_change_no_record(tmp_path: Path, fork_server: None) -> None:
    suite = load_suite(
        str(
            write_suite(
                tmp_path,
                defenses=rows(),
                attacks=ATTACKS,
                model={"name": "mlp", "params": {"hidden": [4]}},
                training={"rounds": ROUNDS, "batch_size": 4, "clients": 3},
                observe={"rounds": ["middle"], "targets": 1},
            )
        )
    )
    whole, killed = (make_plan(suite, Options(run=tmp_path / name, checkpoint_seconds=0)) for name in ("w", "k"))
    assert {job.training.defense.name for job in whole.trainings} == {defense.name for defense in defenses()}
    for first, second in zip(whole.trainings, killed.trainings, strict=True):
        started = time.process_time()
        run_training(first)
        kill_twice(second, time.process_time() - started)
        run_training(second)
        assert contents(first.training_folder) == contents(second.training_folder), second.training.defense.label
    expected, found = compute(whole), compute(killed)
    assert {record["status"] for record in expected.values()} == {"ok"}
    assert found == expected
    print(f"\n{KILLS * len(killed.trainings)} kills; {len(killed.trainings)} trainings and {len(found)} records equal")
