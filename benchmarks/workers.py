"""The engine: two workers compared with one, and a second run of a finished suite.

    .venv/bin/python benchmarks/workers.py [--short]

workers   The whole command on a small suite, wall time: with one worker, then with two. It needs two idle cores; on a
          busy machine the ratio says nothing.
bare      The limit of the machine: the attacks of that suite in two plain processes at once and in one, without the
          engine. Two cores that share memory and clock are not twice as fast as one.
overhead  The CPU seconds of a cell's two processes besides its attack: start, opening the view, passing it on, scoring
          with 1,000 decoys. With --lpips-weights FILE also LPIPS. The target is 0.2 seconds.
second    The CPU seconds of the same command again, when all cells are finished. The limit is 3 seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

from benchmarks._ratio import line
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
ALLOWED, OVERHEAD = 3.0, 0.2


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


def timed(work: Callable[..., None], file: str, *arguments: object) -> None:
    """Run this in a process of its own and note the CPU seconds from its start to its end."""
    try:
        work(*arguments)
    finally:
        Path(file).write_text(str(time.process_time()))


def overhead(folder: Path, weights: str) -> float:
    """The mean CPU seconds of a cell's two processes besides the attack itself.

    Worker and attack process are forked and connected as the engine does it. The first cell is not counted: it computes
    what the others find (features of decoys).
    """
    from leakboard.leaderboard.cells.attack_process import AttackPipes, _child
    from leakboard.leaderboard.cells.fork_server import start_fork_server
    from leakboard.leaderboard.cells.processes import context
    from leakboard.leaderboard.engine.worker import work
    from leakboard.leaderboard.planning.run_folder import open_run
    from leakboard.leaderboard.records.record import Record

    def one(job: Job) -> float:
        for file in (job.record_file, job.answer_file):
            file.unlink(missing_ok=True)
        notes = [str(folder / name) for name in ("worker.txt", "attack.txt")]
        start_fork_server(folder)
        their_questions, our_questions = context().Pipe(duplex=False)
        our_answers, their_answers = context().Pipe(duplex=False)
        pipes = AttackPipes(our_questions, our_answers)
        process: Any = context().Process  # type: ignore[attr-defined]
        attack = process(target=timed, args=(_child, notes[1], their_questions, their_answers))
        worker = process(target=timed, args=(work, notes[0], job.model_dump_json(), pipes))
        for started in (attack, worker):
            started.start()
        for end in (their_questions, their_answers, our_questions, our_answers):
            end.close()
        for started in (worker, attack):
            started.join()
        cost = Record.model_validate_json(job.record_file.read_text()).cost
        assert cost is not None, job.title
        return sum(float(Path(note).read_text()) for note in notes) - cost.cpu_seconds

    jobs = open_run(folder).jobs
    where = {"lpips_weights": weights}
    told = [job.model_copy(update={"locations": job.locations.model_copy(update=where)}) for job in jobs]
    return statistics.mean([one(job) for job in told][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the work: only the second run is meaningful")
    parser.add_argument("--lpips-weights", default="", metavar="FILE", help="AlexNet's weights, to score LPIPS too")
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
        name = f"a cell's overhead in both processes, {'with' if given.lpips_weights else 'without'} LPIPS"
        print(line(name, overhead(Path(folder) / "two", given.lpips_weights), OVERHEAD, "CPU s", 1.0), flush=True)
        best = min(run(suite, Path(folder) / "two", 2)[1] for _ in range(2))
        print(line(f"second run of a finished suite of {cells} cells", best, ALLOWED, "CPU s", 1.0), flush=True)


if __name__ == "__main__":
    main()
