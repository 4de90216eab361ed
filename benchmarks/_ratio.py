"""Side by side in one run: CPU-seconds of ours and of a peer, alternating, best of each, one JSON line a ratio."""

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
#: exit code of a benchmark whose peer is not there
NOT_INSTALLED = 3
ENVIRONMENTS = Path(__file__).resolve().parent.parent / ".cache" / "bench"


def add_parts(parser: argparse.ArgumentParser, *allowed: str) -> None:
    """Let a script take names of its parts, any or none; argparse cannot: it holds an empty list against `choices`."""

    def part(name: str) -> str:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"'{name}' is no part: allowed are {', '.join(allowed)}")
        return name

    parser.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"of {', '.join(allowed)}")


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one piece of work in this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def least(measures: Sequence[Callable[[], Mapping[str, float]]], rounds: int) -> dict[str, float]:
    """The least of each named figure over alternating rounds of measures that return named seconds."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for measure in measures:
            for name, seconds in measure().items():
                best[name] = min(best.get(name, float("inf")), seconds)
    return best


def best_cpu_seconds(works: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """The least CPU time of each piece of work over alternating rounds; one warm-up before."""
    for work in works.values():
        work()
    return least([lambda: {name: cpu_seconds(work) for name, work in works.items()}], rounds)


def peer_python(name: str, *packages: str) -> Path:
    """The interpreter of an environment that holds only these packages (with their needs); made when missing.

    Where peers may not be installed, or cannot be, the program ends with `NOT_INSTALLED` and one sentence.
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
    """What a program for a peer's interpreter prints: one JSON object of named CPU-seconds."""
    done = subprocess.run([str(python), "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    return cast("dict[str, float]", json.loads(done.stdout))


def line(name: str, ours: float, peer: float, unit: str, target: float | None = None, *, at_most: bool = True) -> str:
    """One JSON line: the ratio ours / peer against its target (at most, or at least); no target: for information."""
    ratio = ours / peer
    ok = target is None or (ratio <= target if at_most else ratio >= target)
    row = {"name": name, "ours": ours, "peer": peer, "unit": unit, "ratio": round(ratio, 3), "target": target, "ok": ok}
    return json.dumps({**row, "at_most": at_most})
