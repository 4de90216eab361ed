"""A real Ray on this machine, with two workers: the records of a local run, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leakboard.core.registry import ROOT
from leakboard.leaderboard.engine.executors.memory import PROC
from leakboard.leaderboard.engine.state import read_state
from tests.leaderboard.cells.test_checkpoints import contents
from tests.leaderboard.engine.test_killed import children
from tests.leaderboard.plugin_texts import ATTACK_HEAD
from tests.leaderboard.runs import HANG, TINY_CELLS, call, comparable, wait_until, write_suite

pytest.importorskip("ray", reason="Ray is not installed: pip install -r requirements-ray.txt")

#: Ray kills workers when the machine's memory is nearly full, whoever filled it: not in these tests
ANY_MEMORY = {"RAY_memory_monitor_refresh_ms": "0"}
SEES_GPU = (
    ATTACK_HEAD
    + """
class SeesGpu(MembershipAttack):
    '''Tells which GPUs it was given.'''
    name: ClassVar[str] = "sees-gpu"
    def infer(self, knowledge, task):
        print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"))
        scores = torch.zeros(len(task.candidates))
        return MembershipAnswer(scores, scores > 0)
"""
)


def start(suite: Path, folder: Path, address: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "run_benchmark.py"), "run", "--suite", str(suite), "--out", str(folder)]
    return subprocess.Popen(
        [*command, "--executor", "ray", "--workers", "2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder.parent,
        env={**os.environ, **ANY_MEMORY, "RAY_ADDRESS": address},
    )


def ray_workers(above: int) -> list[int]:
    """The Ray workers below a process that do a job now: those with a job's process below them."""
    found, waiting = [], children(above)
    while waiting:
        process = waiting.pop()
        waiting += children(process)
        try:
            title = (PROC / str(process) / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::work_here") and any(children(below) for below in children(process)):
            found.append(process)
    return sorted(found)


@pytest.mark.slow
def test_a_killed_ray_worker_costs_no_record(tiny_suite: Path, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(tiny_suite, folder, "local")
    try:
        # as soon as it has a job's process: first the training's
        wait_until(lambda: bool(ray_workers(process.pid)) or process.poll() is not None)
        victim = ray_workers(process.pid)[0]
        state = read_state(folder)
        assert state is not None
        assert (state.executor, state.workers) == ("ray", 2)
        os.kill(victim, signal.SIGKILL)
        out, _ = process.communicate(timeout=HANG)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert len(list((folder / "records").glob("*.json"))) == TINY_CELLS
    assert comparable(folder) == comparable(tiny_run)
    assert list(folder.rglob("*.part")) == []
    print(f"\none of two Ray workers killed; {TINY_CELLS} records equal")


@pytest.mark.slow
def test_a_training_goes_on_after_its_ray_worker_was_killed(tmp_path: Path) -> None:
    """With dropouts, too: client 1 vanishes in every tenth round."""
    drops = [{"client": 1, "round": index, "step": "update"} for index in range(0, 300, 10)]
    suite = write_suite(
        tmp_path,
        defenses=["secagg"],
        control="secagg",
        training__rounds=300,
        training__dropouts=drops,
        attacks=[{"name": "prior", "threats": ["server"]}, {"name": "loss-threshold", "threats": ["client"]}],
    )
    folders = [tmp_path / name for name in ("killed", "whole")]
    process = start(suite, folders[0], "local", "--checkpoint-seconds", "0", "--keep-transcripts")
    try:
        kept = f"trainings/*.snapshots/round-{'[0-9]' * 5}[5-9][0-9]"
        wait_until(lambda: any(folders[0].glob(kept)) or process.poll() is not None)
        (victim,) = ray_workers(process.pid)
        os.kill(victim, signal.SIGKILL)
        out, _ = process.communicate(timeout=HANG)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert call("run", "--suite", suite, "--out", folders[1], "--workers", 1, "--keep-transcripts").code == 0
    logs = [next((folder / "logs").glob("training-*.log")).read_text() for folder in folders]
    assert ["went on from round" in log for log in logs] == [True, False]
    one, two = (contents(next((folder / "trainings").iterdir())) for folder in folders)
    assert one == two
    assert comparable(folders[0]) == comparable(folders[1])
    print(f"\nthe Ray worker of a training killed; {len(one)} files and {len(comparable(folders[0]))} records equal")


@pytest.mark.slow
def test_a_machine_that_dies_costs_no_record_and_a_cell_gets_its_gpu(
    tiny_suite: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")
    for name, value in ANY_MEMORY.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "gpu.py").write_text(SEES_GPU)
    folder = tmp_path / "run"
    # two machines, as far as Ray knows, with a GPU each that only Ray believes in
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False})
    process = None
    try:
        machine = cluster.add_node(num_cpus=1, num_gpus=1)
        raylet = machine.all_processes["raylet"][0].process.pid
        process = start(
            tiny_suite, folder, cluster.address, "--gpus-per-cell", "0.5", "--plugin", str(tmp_path / "gpu.py")
        )
        wait_until(lambda: bool(ray_workers(raylet)) or process.poll() is not None)
        assert process.poll() is None
        cluster.remove_node(machine, allow_graceful=False)
        out, _ = process.communicate(timeout=HANG)
    finally:
        if process is not None:
            process.kill()
        cluster.shutdown()
    assert process.returncode == 0, out
    found, expected = comparable(folder), comparable(tiny_run)
    assert {name: found[name] for name in expected} == expected
    assert len(list((folder / "records").glob("*.json"))) == TINY_CELLS + 1
    (log,) = (folder / "logs").glob("*sees-gpu*")
    assert "GPUs: 0\n" in log.read_text()
    print(f"\none of two machines killed; {TINY_CELLS} records equal")
