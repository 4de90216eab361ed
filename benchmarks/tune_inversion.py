"""How the defaults of `inverting-gradients` were chosen: on auxiliary victims, never on the suites' targets.

    .venv/bin/python benchmarks/tune_inversion.py

Victims are auxiliary images of digits; models are those of the suite `quick` after the first, middle and last
round (trained with another seed). Prints the mean PSNR for each total-variation weight and learning rate.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from attacks.base import Inversion, Knowledge
from attacks.reconstruction._labels import recover_labels
from attacks.reconstruction.inverting_gradients import InvertingGradients
from datasets.digits import Digits
from datasets.loading import load_pool
from datasets.splits import make_splits
from defenses.base import Gradient
from defenses.fedavg import FedAvg
from federation.rounds import Federation
from federation.settings import Public, Watch, client_name
from federation.task import task_of
from federation.view import make_view, parse_threat
from metrics.psnr import psnr
from suites.schema import load_suite

SEED, VICTIMS, ITERATIONS = 1000, 12, 300


def main() -> None:
    torch.set_num_threads(1)
    suite = load_suite("quick")
    dataset = Digits()
    pool = load_pool(dataset)
    splits = make_splits(pool, seed=SEED, clients=suite.training.clients)
    shards = {client_name(i): pool.take(shard) for i, shard in enumerate(splits.shards)}
    rounds = suite.training.rounds
    assert rounds is not None
    public = Public(
        defense="fedavg",
        parameters={},
        model=suite.model.name,
        model_parameters=suite.model.params,
        shape=pool.shape,
        classes=pool.classes,
        mean=dataset.mean,
        std=dataset.std,
        training=suite.training,
        total_rounds=rounds,
        shard_sizes=tuple(len(shard) for shard in splits.shards),
    )
    outcome = Federation(FedAvg(), public, shards, Watch(targets=1), SEED).run()
    view = make_view(outcome.transcript, parse_threat("server", len(shards)), public, outcome.secrets, shards)
    victims = pool.take(splits.auxiliary[:VICTIMS])
    knowledge = Knowledge(view, FedAvg(), victims, SEED)
    task = task_of(public)
    for index, model in outcome.models.items():
        gradients = [
            task.gradient(model, i[None], y[None])[0] for i, y in zip(victims.images, victims.labels, strict=True)
        ]
        problems = tuple(Inversion(model, Gradient(g, 1, 1), None) for g in gradients)
        labels = [recover_labels(task, model, g, 1) for g in gradients]
        right = sum(int(a) == int(b) for a, b in zip(labels, victims.labels, strict=True))
        print(f"after round {index}: labels recovered {right} of {VICTIMS}", flush=True)
        for tv in (1e-3, 3e-3, 1e-2, 3e-2):
            row = []
            for rate in (0.1, 0.3, 1.0):
                attack = InvertingGradients(iterations=ITERATIONS, tv=tv, learning_rate=rate)
                images, _ = attack._invert(knowledge, problems, labels)
                row.append(f"lr {rate}: {float(psnr(images[:, 0], victims.images).mean()):.2f} dB")
            print(f"  tv {tv}: " + ", ".join(row), flush=True)


if __name__ == "__main__":
    main()
