"""All comparisons in one table: name, our value, the peer's value, their ratio, the target.

    make bench                          everything, about 20 minutes; two parts need two idle cores
    make bench BENCH=--quick            a few minutes: short forms, and nothing that needs an idle machine
    .venv/bin/python -m benchmarks [--quick] [--install] [NAME ...]

Ratios are taken within one run, in CPU seconds, because machines are shared. Peers have separate
environments under .cache/bench. A missing one is reported; --install creates it and needs the network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._ratio import NOT_INSTALLED, PEERS

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Benchmark:
    """A script with its arguments, and those of its short form; None if a short form would mean nothing."""

    script: str
    arguments: tuple[str, ...]
    short: tuple[str, ...] | None


BENCHMARKS = {
    "client": Benchmark("mp_client.py", (), ("convnet",)),
    "chunks": Benchmark("chunks.py", (), ("16",)),
    "paillier": Benchmark("crypto.py", ("paillier",), ("paillier", "--rounds", "1")),
    "functional": Benchmark("crypto.py", ("functional",), ("functional", "--rounds", "1")),
    "inversion": Benchmark("inversion.py", ("--seeds", "0"), ("--seeds", "0", "--timed", "10", "--rounds", "1")),
    "gradients": Benchmark("shadows.py", ("gradients",), ("gradients", "--rounds", "1")),
    "shadows": Benchmark("shadows.py", ("pool",), None),
    "round": Benchmark("round.py", (), ("--clients", "5", "--curve-rounds", "40")),
    "memory": Benchmark("scale.py", ("ratios", "large"), ("ratios", "--short")),
    "engine": Benchmark("workers.py", (), ("--short",)),
    "first": Benchmark("first_run.py", (), None),
}


def measure(benchmark: Benchmark, arguments: tuple[str, ...], install: bool) -> list[dict[str, Any]]:
    """The rows that a script prints; one row without numbers if its peer is missing or it failed."""
    env = {**os.environ, PEERS: "install" if install else "installed", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / benchmark.script), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    rows = [json.loads(text) for text in done.stdout.splitlines() if text.startswith('{"name"')]
    if done.returncode == NOT_INSTALLED:
        rows.append({"name": done.stderr.strip().splitlines()[-1], "missing": "not installed"})
    elif done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        rows.append({"name": f"{benchmark.script} failed: {last}", "missing": "failed"})
    return rows


def shown(row: dict[str, Any]) -> str:
    """A row of the table, in Markdown."""
    if "missing" in row:
        return f"| {row['name']} | | | | | {row['missing']} |"
    if "ratio" not in row:
        return ""
    target, verdict = "", ""
    if row["target"] is not None:
        target = f"{'≤' if row['at_most'] else '≥'} {row['target']:g}"
        verdict = "met" if row["ok"] else "missed"
    figures = f"{row['ours']:.4g} | {row['peer']:.4g} | {row['unit']} | {row['ratio']:.3g}"
    return f"| {row['name']} | {figures} | {target} {verdict} |"


def main() -> int:
    """Print the requested rows as they come. Returns 1 if a script failed (a missed target is no failure)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="short forms, a few minutes")
    parser.add_argument("--install", action="store_true", help="install peers that are missing, from the network")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark '{unknown[0]}': allowed are {', '.join(BENCHMARKS)}")
    print("| what | ours | peer | unit | ratio | target |")
    print("|---|---|---|---|---|---|", flush=True)
    failed = False
    for name in given.names or BENCHMARKS:
        arguments = BENCHMARKS[name].short if given.quick else BENCHMARKS[name].arguments
        if arguments is None:
            print(f"| {name} | | | | | only without --quick |", flush=True)
            continue
        for row in measure(BENCHMARKS[name], arguments, given.install):
            failed |= row.get("missing") == "failed"
            print(shown(row), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
