"""Why the label counts of an update are read less well under `clip` and `cdp`: the setting of the suite `realistic`.

    .venv/bin/python benchmarks/labels_of_updates.py --data npz:FILE

The first round of one federation per defense, probed as the suite does: after the round's training step. Printed per
probe: the length of the update of the weights and of the batch-norm statistics, as the server receives them, and the
share of the 128 labels that `labels_of` finds. Five clients, clip 1, seed 0; another draw of images than the suite's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch

from benchmarks._federation import public_settings
from leakboard.attacks.base import Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.core import registry
from leakboard.datasets.base import Dataset
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import make_splits
from leakboard.defenses.base import Defense
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Training, client_name
from leakboard.federation.view import make_view, parse_threat
from leakboard.metrics.label_accuracy import label_hits

CLIENTS, RECORDS, PROBES = 5, 128, 2
LOCAL = {"local_steps": 4, "local_batches": 4, "local_learning_rate": 0.1}


def length(values: Parameters) -> float:
    """The Euclidean length of all floating-point values together."""
    return float(torch.cat([v.flatten() for v in values.values() if v.is_floating_point()]).norm())


def main() -> None:
    """Print one line per defense and probe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="digits, or npz:FILE")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name, _, path = args.data.partition(":")
    dataset = cast(Dataset, registry.create("dataset", name, {"path": path} if path else {}))
    pool = load_pool(dataset)
    splits = make_splits(pool, seed=args.seed, clients=CLIENTS)
    shards = {client_name(i): pool.take(shard[:400]) for i, shard in enumerate(splits.shards)}
    given = {
        "loss": "ce",
        "rounds": 1,
        "batch_size": RECORDS,
        "clients": CLIENTS,
        "learning_rate": 1.0,
        "momentum": 0.0,
    }
    training = Training.parse({**given, **LOCAL}, "training")
    network = registry.create("model", "resnet8", {"norm": "batch", "bias": True, "width": 8})
    observe = ObservedRounds(rounds=("first",), targets=PROBES, probe_batch=RECORDS)
    for plugin, parameters in (("fedavg", {}), ("clip", {"clip": 1.0}), ("cdp", {"clip": 1.0})):
        defense = cast(Defense, registry.create("defense", plugin, parameters))
        sizes = [len(shard) for shard in shards.values()]
        public = public_settings(dataset, pool, training, sizes, network, defense=defense)
        outcome = Federation(defense, public, shards, observe, args.seed).run()
        server = parse_threat("server", CLIENTS)
        view = make_view(outcome.transcript, server, outcome.public, outcome.secrets, shards)
        knowledge = Knowledge(view, defense, pool.take(splits.auxiliary[:2000]), args.seed)
        task = ReconstructionTask("first", 0, PROBES, RECORDS, None, (RECORDS,) * PROBES)
        for index, problem in enumerate(task.problems(knowledge)):
            truth = shards[client_name(0)].labels[index * RECORDS : (index + 1) * RECORDS]
            hits = float(label_hits(labels_of(knowledge, problem), truth).mean())
            assert problem.update is not None
            assert problem.statistics is not None
            sent = {n: v - problem.model[n] for n, v in problem.statistics.items()}
            lengths = f"update of weights {length(problem.update.values):.3f}, of statistics {length(sent):.3f}"
            print(f"{plugin}, probe {index}: {lengths}, labels {100 * hits:.1f} %", flush=True)


if __name__ == "__main__":
    main()
