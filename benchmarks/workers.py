"""The engine: two workers compared with one, and a second run of a finished suite.

    .venv/bin/python benchmarks/workers.py [--short]

workers   The whole command on a small suite, wall time: with one worker, then with two. It needs two idle cores; on a
          busy machine the ratio says nothing.
bare      The limit of the machine: the attacks of that suite in two plain processes at once and in one, without the
          engine. Two cores that share memory and clock are not twice as fast as one.
overhead  The CPU seconds of a cell besides its attack: opening the view, passing it on, scoring.
second    The CPU seconds of the same command again, when all cells are finished. The limit is 3 seconds.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

from benchmarks._ratio import cpu_seconds, line
from leakboard.leaderboard.planning.jobs import Job

ROOT = Path(__file__).resolve().parent.parent

SUITE = """
name: workers
description: cells of about the same size
datasets: [digits]
model: convnet
training: {{loss: mse, rounds: 20, batch_size: 32, clients: 5, learning_rate: 0.05}}
observe: {{rounds: [first, last], probe_batch: 1, targets: 8}}
seeds: {seeds}
defenses: [fedsgd, mp-dp]
attacks:
  - {{name: inverting-gradients, threats: [server], params: {{iterations: {iterations}, tv: 0.01}}}}
  - {{name: prior, threats: [server]}}
control: fedsgd
"""
ALLOWED = 3.0


def run(suite: Path, out: Path, workers: int) -> tuple[float, float]:
    """Wall and CPU seconds of the command. CPU seconds do not include its workers."""
    command = [sys.executable, "run_benchmark.py", "run", "--suite", str(suite), "--out", str(out)]
    used, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*command, "--workers", str(workers)], cwd=ROOT, check=True, capture_output=True)
    wall, now = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def attack_alone(folder: Path) -> None:
    """Run all reconstructions of a finished run in this process after a line on stdin; print their wall time."""
    import torch

    from leakboard.attacks.base import ReconstructionAttack, ReconstructionTask
    from leakboard.leaderboard.cells.question import make_question
    from leakboard.leaderboard.planning.run_folder import open_run

    torch.set_num_threads(1)
    questions = [make_question(job) for job in open_run(folder).jobs]
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    for question in questions:
        assert isinstance(question.attack, ReconstructionAttack)
        assert isinstance(question.task, ReconstructionTask)
        question.attack.reconstruct(question.knowledge, question.task)
    print(time.perf_counter() - started, flush=True)


def bare(folder: Path, processes: int) -> float:
    """Wall seconds until `processes` that start together have each run all attacks of a finished run."""
    command = [sys.executable, __file__, "--attack-alone", str(folder)]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in started)


def overhead(folder: Path) -> float:
    """The mean CPU seconds per cell of a finished run besides its attack, after all imports."""
    import torch

    from leakboard.leaderboard.cells.answer import load_answer
    from leakboard.leaderboard.cells.question import make_question
    from leakboard.leaderboard.cells.score import goal_of, score
    from leakboard.leaderboard.planning.run_folder import open_run

    torch.set_num_threads(1)
    jobs = open_run(folder).jobs

    def one(job: Job) -> None:
        question = replace(make_question(job), portions=())
        pickle.loads(pickle.dumps(question))
        score(job, load_answer(goal_of(job), job.answer_file)[0])

    one(jobs[0])
    return sum(cpu_seconds(partial(one, job)) for job in jobs) / len(jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the work: only the second run is meaningful")
    parser.add_argument("--attack-alone", type=Path, metavar="RUN", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack_alone:
        attack_alone(given.attack_alone)
        return
    text = SUITE.format(seeds=[0] if given.short else [0, 1, 2], iterations=30 if given.short else 300)
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "workers.yaml"
        suite.write_text(text)
        cells = 4 * (2 if given.short else 6)
        if not given.short:
            one, _ = run(suite, Path(folder) / "one", 1)
        two, _ = run(suite, Path(folder) / "two", 2)
        if not given.short:
            busy = f", load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else ""
            name = f"2 workers against 1 (needs two idle cores{busy})"
            print(line(name, cells / two, cells / one, "cells / wall s", 1.8, at_most=False), flush=True)
            alone, together = bare(Path(folder) / "two", 1), bare(Path(folder) / "two", 2)
            name = "what the machine allows: the same attacks in 2 plain processes against 1"
            print(line(name, 2 * cells / together, cells / alone, "cells / wall s"), flush=True)
        name = "a cell's overhead against the second that is allowed"
        print(line(name, overhead(Path(folder) / "two"), 1.0, "CPU s", 1.0), flush=True)
        best = min(run(suite, Path(folder) / "two", 2)[1] for _ in range(2))
        print(line(f"second run of a finished suite of {cells} cells", best, ALLOWED, "CPU s", 1.0), flush=True)


if __name__ == "__main__":
    main()
