"""What `make run` costs after the install: CPU seconds of all its processes, and the time to the first result.

    .venv/bin/python benchmarks/first_run.py [--suite NAME] [--workers N] [--out DIR]

The suite runs from nothing, in a new folder and with caches of its own. CPU seconds are those of the command and of all
processes that it starts. Wall seconds need two idle cores: on a busy machine they say nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

from benchmarks._ratio import line

ROOT = Path(__file__).resolve().parent.parent
#: what is allowed: CPU seconds, wall seconds, and wall seconds to the first result
CPU, WALL, FIRST = 330.0, 180.0, 30.0
#: Linux: orphans become children of this process, so that their CPU seconds are counted (prctl.h)
PR_SET_CHILD_SUBREAPER = 36
#: a line of the progress that tells how a cell ended, not a training
RESULT = re.compile(r"^\[\d+/\d+\] (?!\w+\s+training)(?!.*: trained, )")


def measure(suite: str, workers: int, out: str) -> tuple[float, float, float]:
    """CPU seconds, wall seconds, and wall seconds to the first result of one run from nothing."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LEAKBOARD_CACHE": str(Path(folder) / "cache")}
        command = [
            sys.executable,
            "run_benchmark.py",
            "run",
            "--suite",
            suite,
            "--out",
            out or str(Path(folder) / "run"),
        ]
        started, first = time.perf_counter(), float("nan")
        process = subprocess.Popen(
            [*command, "--workers", str(workers)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for text in process.stderr:
            if first != first and RESULT.match(text):
                first = time.perf_counter() - started
        if process.wait():
            sys.exit(f"the run of the suite {suite} failed: run it by hand to see why")
        wall = time.perf_counter() - started
        with suppress(ChildProcessError):  # the fork server ends after the command; it has counted the workers
            while True:
                os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, wall, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="quick", help="a suite (default: quick)")
    parser.add_argument("--workers", type=int, default=2, help="jobs at once (default: 2)")
    parser.add_argument("--out", metavar="DIR", default="", help="keep the run here; the folder must not exist yet")
    given = parser.parse_args()
    if given.out and Path(given.out).exists():
        parser.error(f"the run must start from nothing, and {given.out} exists already")
    cpu, wall, first = measure(given.suite, given.workers, given.out)
    print(line(f"{given.suite} from nothing, CPU seconds of {CPU:g} allowed", cpu, CPU, "CPU s", 1.0))
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(line(f"the same, wall time (needs two idle cores, {load})", wall, WALL, "wall s", 1.0))
    print(line("the same, time to the first result", first, FIRST, "wall s", 1.0))


if __name__ == "__main__":
    main()
