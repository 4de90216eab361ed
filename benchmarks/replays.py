"""What replaying a training takes: bytes of its snapshots, and CPU seconds, for every defense.

    .venv/bin/python benchmarks/replays.py            # all defenses, with the small parameters of the contract
    .venv/bin/python benchmarks/replays.py secagg mf  # some

Setting: digits, the default convnet, 5 clients with 16 records each, batches of 4, 5 rounds, observed in the first, the
middle and the last one, with 2 probes per observed round. Each replay must give the transcript that was recorded.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from leakboard.contract.small import small
from leakboard.contract.worlds import digits, make_public
from leakboard.core import registry
from leakboard.defenses.base import Defense
from leakboard.federation.observed import replay_observed, save_replay
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, client_name
from leakboard.federation.snapshot import ReplaySnapshot

CLIENTS, SHARD, ROUNDS, SEED = 5, 16, 5, 7
OBSERVED = ObservedRounds(rounds=("first", "middle", "last"), targets=2)


def defense_of(name: str) -> Defense:
    """A new object of the defense, with small parameters."""
    plugin = registry.load("defense", name)
    assert issubclass(plugin, Defense)
    return small(plugin)


def measure(name: str) -> tuple[int, float]:
    """Bytes of a defense's replay, and CPU seconds to run it."""
    data = digits()
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(SEED))
    shards = {client_name(i): data.take(order[i * SHARD : (i + 1) * SHARD]) for i in range(CLIENTS)}
    public = make_public(
        defense_of(name), data, model="convnet", model_parameters={}, clients=CLIENTS, shard=SHARD, rounds=ROUNDS
    )
    outcome = Federation(defense_of(name), public, shards, OBSERVED, SEED, kept=ReplaySnapshot()).run()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "replay"
        save_replay(folder, outcome, outcome.transcript, "benchmark", SEED)
        size = sum(path.stat().st_size for path in folder.iterdir())
        started = time.process_time()
        again = replay_observed(folder, defense_of(name), public, shards, OBSERVED, SEED)
        seconds = time.process_time() - started
    assert again.transcript.digest() == outcome.transcript.digest()
    return size, seconds


def main(names: list[str]) -> None:
    """Print one line per defense, as a table of the docs."""
    torch.set_num_threads(1)
    print("| defense | MB | CPU seconds of a replay |\n|---|---|---|")
    for name in names or registry.entries("defense"):
        size, seconds = measure(name)
        print(f"| {name} | {size / 1e6:.2f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
