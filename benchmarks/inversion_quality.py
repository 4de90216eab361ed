"""The quality of a reconstruction attack without a defense: tuned on auxiliary victims, measured on members.

    # tuning: auxiliary victims, seed 1000; every combination of the lists is tried
    .venv/bin/python benchmarks/inversion_quality.py --victims auxiliary --grid tv=0.003,0.01,0.03 learning_rate=0.1,0.3
    # the figure: the first records of client 0, seed 0, one setting
    .venv/bin/python benchmarks/inversion_quality.py --images 32 --grid tv=0.01 iterations=1000

Batch 1, labels not known. The model is freshly initialised, or trained by fedsgd with `--rounds N` (5 clients, batches
of 64). `--data npz:FILE` replaces the embedded digits.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
import yaml

from benchmarks._federation import public_settings
from leakboard.attacks.base import Inversion, Knowledge, ReconstructionAttack, ReconstructionTask
from leakboard.core import registry
from leakboard.datasets.base import Dataset
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import make_splits
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import Training, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import make_view, parse_threat
from leakboard.metrics.psnr import psnr

CLIENTS = 5


@dataclass(frozen=True)
class Given(ReconstructionTask):
    """Fixed problems instead of those of the view."""

    found: tuple[Inversion, ...] = ()

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        """The problems that were given."""
        return self.found


def main() -> None:
    """Print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", default="inverting-gradients")
    parser.add_argument("--data", default="digits", help="digits, or npz:FILE")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--victims", choices=["auxiliary", "members"], default="members")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=0, help="rounds of fedsgd before the attack")
    parser.add_argument("--grid", nargs="*", default=[], metavar="NAME=VALUE,VALUE", help="parameters of the attack")
    args = parser.parse_args()
    torch.set_num_threads(1)
    knowledge, task, originals = problems_of(args)
    floor = psnr(knowledge.auxiliary.images.mean(0, keepdim=True).expand_as(originals), originals)
    print(f"{args.data}, {args.model} after {args.rounds} rounds, {args.victims}; prior {float(floor.mean()):.2f} dB")
    for params in settings(args.grid):
        attack = cast(ReconstructionAttack, registry.create("attack", args.attack, params))
        started = time.process_time()
        answer = attack.reconstruct(knowledge, task)
        score = psnr(torch.cat(list(answer.images)), originals)
        print(
            f"  {args.attack} {params}: {float(score.mean()):.2f} dB (from {float(score.min()):.2f} to "
            f"{float(score.max()):.2f}, n = {len(score)}), {time.process_time() - started:.0f} CPU s",
            *answer.flags,
            flush=True,
        )


def settings(grid: list[str]) -> list[dict[str, Any]]:
    """Every combination of the values of each parameter."""
    names = [entry.partition("=")[0] for entry in grid]
    values = [[yaml.safe_load(value) for value in entry.partition("=")[2].split(",")] for entry in grid]
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def problems_of(args: argparse.Namespace) -> tuple[Knowledge, Given, torch.Tensor]:
    """What the attack knows, its question, and the truth. Tuning has another seed than the reported numbers."""
    seed = 1000 if args.victims == "auxiliary" else 0
    name, _, path = args.data.partition(":")
    dataset = cast(Dataset, registry.create("dataset", name, {"path": path} if path else {}))
    pool = load_pool(dataset)
    splits = make_splits(pool, seed=seed, clients=CLIENTS)
    training = Training(rounds=max(1, args.rounds), batch_size=64, clients=CLIENTS, learning_rate=0.05)
    public = public_settings(dataset, pool, training, [len(shard) for shard in splits.shards], args.model)
    task = task_of(public)
    shards = {client_name(i): pool.take(shard) for i, shard in enumerate(splits.shards)}
    outcome = Federation(FedSGD(), public, shards, None, seed).run()
    model = outcome.model if args.rounds else task.initial(seed)
    view = make_view(outcome.transcript, parse_threat("server", CLIENTS), public, outcome.secrets, shards)
    indices = (splits.auxiliary if args.victims == "auxiliary" else splits.shards[0])[: args.images]
    victims = pool.take(indices)
    auxiliary = pool.take(splits.auxiliary[args.images :] if args.victims == "auxiliary" else splits.auxiliary)
    pairs = zip(victims.images, victims.labels, strict=True)
    found = [Inversion(model, Gradient(task.gradient(model, i[None], y[None])[0], 1, 1), None) for i, y in pairs]
    asked = Given("first", 0, len(found), 1, None, (1,) * len(found), tuple(found))
    return Knowledge(view, FedSGD(), auxiliary, seed), asked, victims.images


if __name__ == "__main__":
    main()
