"""FedMIA and its baselines without a defense, in a setting as near to the paper's as a desk allows.

    .venv/bin/python benchmarks/fedmia_quality.py --data npz:FILE --shard 100 --rounds 60

The paper (Zhu et al., CVPR 2025): CIFAR-100, 10 clients with 5,000 records each, one local epoch per round, 300 rounds,
every tenth is used. Here: 10 clients with `--shard` records each, one step per round on the whole shard (fedsgd), every
tenth round is used. The server asks which records are in the victim's shard. Members are that shard; non-members are
records that no client has, the same ones in every round. No threshold is involved: AUC and TPR only.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch

from benchmarks._federation import public_settings
from leakboard.attacks.base import Knowledge
from leakboard.attacks.membership.fedmia import FedMia
from leakboard.core import registry
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import Dataset
from leakboard.datasets.loading import load_pool
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import VICTIM, ObservedRounds, Training, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import make_view, parse_threat
from leakboard.metrics.accuracy import accuracy
from leakboard.metrics.auc import auc
from leakboard.metrics.tpr_at_fpr import tpr_at_fpr

CLIENTS, EVERY = 10, 10
ATTACKS = {
    "FedMIA-II (cosine)": FedMia(measure="cosine"),
    "FedMIA-I (loss)": FedMia(measure="loss"),
    "Avg-Cosine": FedMia(measure="cosine", null="none"),
    "Grad-Diff": FedMia(measure="difference", null="none"),
    "Grad-Norm": FedMia(measure="norm", null="none"),
    "Loss-Series": FedMia(measure="loss", null="none"),
}


def main() -> None:
    """Print one row per attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="digits, or npz:FILE")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--shard", type=int, default=100)
    parser.add_argument("--others", type=int, default=500, help="non-members")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name, _, path = args.data.partition(":")
    dataset = cast(Dataset, registry.create("dataset", name, {"path": path} if path else {}))
    images = load_pool(dataset)
    order = torch.randperm(
        len(images.labels), generator=torch.Generator().manual_seed(derive_seed(args.seed, "images"))
    )
    parts = torch.split(order[: CLIENTS * args.shard + args.others], [*[args.shard] * CLIENTS, args.others])
    shards = {client_name(i): images.take(parts[i]) for i in range(CLIENTS)}
    training = Training(
        rounds=args.rounds, batch_size=args.shard, clients=CLIENTS, learning_rate=args.learning_rate, loss="ce"
    )
    public = public_settings(dataset, images, training, (args.shard,) * CLIENTS, args.model)
    started = time.process_time()
    observe = ObservedRounds(rounds=("last",), targets=1)
    outcome = Federation(FedSGD(), public, shards, observe, args.seed, record_all=True).run()
    trained = time.process_time() - started
    view = make_view(outcome.transcript, parse_threat("server", CLIENTS), outcome.public, outcome.secrets, shards)
    knowledge = Knowledge(view, FedSGD(), images.take(parts[-1]), args.seed)
    records = images.take(torch.cat([parts[0], parts[-1]]))
    members = torch.arange(len(records)) < args.shard
    readings = [
        reading
        for reading in knowledge.readings()
        if reading.context.kind == "train" and reading.context.round % EVERY == EVERY - 1
    ]
    model = readings[-1].model
    assert model is not None
    logits = task_of(public).predict(model, records.images)
    inside, outside = (accuracy(logits[part], records.labels[part]) for part in (members, ~members))
    print(
        f"{name}, {CLIENTS} clients with {args.shard} records each, {args.model}, {args.rounds} rounds, "
        f"{len(readings)} of them used, {args.others} non-members, seed {args.seed}; "
        f"accuracy {inside:.3f} on the victim's records, {outside:.3f} on non-members; training {trained:.0f} CPU s\n\n"
        "| attack | AUC | TPR at 1 % FPR | CPU s |\n|---|---|---|---|"
    )
    for title, attack in ATTACKS.items():
        started = time.process_time()
        scores = attack.scores_of(knowledge, readings, records, (VICTIM,))
        spent = time.process_time() - started
        print(
            f"| {title} | {auc(scores, members):.3f} | {tpr_at_fpr(scores, members, 0.01):.3f} | {spent:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
