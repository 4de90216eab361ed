"""CPU seconds of our code and of a peer in one run: alternating, the best of each, one JSON line per ratio."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

#: the variable that says whether missing peers may be installed: "install" (the default) or "installed"
PEERS = "LEAKBOARD_PEERS"
#: exit code of a benchmark whose peer is missing
NOT_INSTALLED = 3
ENVIRONMENTS = Path(__file__).resolve().parent.parent / ".cache" / "bench"


def add_parts(parser: argparse.ArgumentParser, *allowed: str) -> None:
    """Let a script take any names of its parts, or none. With `choices`, argparse would refuse an empty list."""

    def part(name: str) -> str:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"'{name}' is no part: allowed are {', '.join(allowed)}")
        return name

    parser.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"some of {', '.join(allowed)}")


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one piece of work in this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def least(measures: Sequence[Callable[[], Mapping[str, float]]], rounds: int) -> dict[str, float]:
    """The smallest of each named time over alternating rounds of measurements."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for measure in measures:
            for name, seconds in measure().items():
                best[name] = min(best.get(name, float("inf")), seconds)
    return best


def best_cpu_seconds(works: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """The smallest CPU time of each piece of work over alternating rounds, after one warm-up."""
    for work in works.values():
        work()
    return least([lambda: {name: cpu_seconds(work) for name, work in works.items()}], rounds)


def peer_python(name: str, *packages: str) -> Path:
    """The interpreter of an environment with only these packages and their dependencies, created if missing.

    If peers may not or cannot be installed, the program ends with `NOT_INSTALLED` and one sentence.
    """
    folder = ENVIRONMENTS / name
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    if not installed.exists() or installed.read_text().split() != list(packages):
        if os.environ.get(PEERS, "install") != "install":
            _not_installed(name)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subprocess.run([*pip, *packages], check=True)
        except subprocess.CalledProcessError:
            _not_installed(name)
        installed.write_text("\n".join(packages))
    return python


def _not_installed(name: str) -> NoReturn:
    print(f"the peer {name}", file=sys.stderr)
    sys.exit(NOT_INSTALLED)


def peer_seconds(python: Path, program: str) -> dict[str, float]:
    """The output of a program in a peer's interpreter: one JSON object of named CPU seconds."""
    done = subprocess.run([str(python), "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    return cast("dict[str, float]", json.loads(done.stdout))


def line(name: str, ours: float, peer: float, unit: str, target: float | None = None, *, at_most: bool = True) -> str:
    """One JSON line: the ratio ours / peer and its target (at most, or at least); without a target for information."""
    ratio = ours / peer
    ok = target is None or (ratio <= target if at_most else ratio >= target)
    row = {"name": name, "ours": ours, "peer": peer, "unit": unit, "ratio": round(ratio, 3), "target": target, "ok": ok}
    return json.dumps({**row, "at_most": at_most})
