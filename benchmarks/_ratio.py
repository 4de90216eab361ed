"""Side by side in one run: CPU-seconds of ours and of a peer, alternating, best of each, one JSON line a ratio."""

from __future__ import annotations

import json
import time
from collections.abc import Callable


def best_cpu_seconds(works: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """The least CPU time of each piece of work over alternating rounds; one warm-up before."""
    for work in works.values():
        work()
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            started = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - started)
    return best


def line(name: str, ours: float, peer: float, unit: str, target: float | None = None, *, at_most: bool = True) -> str:
    """One JSON line: the ratio ours / peer against its target (at most, or at least); no target: for information."""
    ratio = ours / peer
    ok = target is None or (ratio <= target if at_most else ratio >= target)
    row = {"name": name, "ours": ours, "peer": peer, "unit": unit, "ratio": round(ratio, 3), "target": target, "ok": ok}
    return json.dumps(row)
