"""All membership attacks without a defense: N models, each the target in turn.

    .venv/bin/python benchmarks/membership_quality.py --data npz:FILE --images 2500 --models 16 --epochs 40

N models (fedsgd, 5 clients) learn complementary halves of the images, so every image is in half of them. A client
attacks each model; the others, except its twin, are the references. For half of the images the client knows whether the
target learned them. Attack networks of the paper's kind learn from that half; the other attacks take their thresholds
(and rmia its population) from it. The question is about the other half. The table has means over the targets and their
standard deviation. CPU seconds per target include the references that the attack needs and the attack itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
from torch import Tensor

from benchmarks._federation import public_settings
from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask
from leakboard.attacks.membership.building_blocks.rotating_targets import Turn, first_models, turns
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack, ShadowPool, Signals, read_signals
from leakboard.attacks.membership.known_members import KnownMembers
from leakboard.attacks.membership.lira import Lira
from leakboard.attacks.membership.loss_threshold import LossThreshold
from leakboard.attacks.membership.modified_entropy import ModifiedEntropy
from leakboard.attacks.membership.nasr import Nasr
from leakboard.attacks.membership.quantile import QuantileRegression
from leakboard.attacks.membership.rmia import Rmia
from leakboard.attacks.membership.shadow import Shadow
from leakboard.core import registry
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import Dataset, LabelledImages
from leakboard.datasets.loading import load_pool
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.settings import ObservedRounds, Training
from leakboard.federation.shadow import train_shadow
from leakboard.federation.view import View
from leakboard.metrics.accuracy import accuracy
from leakboard.metrics.asr import asr
from leakboard.metrics.auc import auc
from leakboard.metrics.tpr_at_fpr import tpr_at_fpr

CLIENTS, BATCH = 5, 32


@dataclass(frozen=True)
class Models:
    """N trained models: a client's view, outputs and CPU seconds of each; and records that nobody learned."""

    views: list[View]
    pool: ShadowPool
    seconds: list[float]
    unused: LabelledImages


def attacks_for(references: int) -> dict[str, tuple[MembershipAttack, bool]]:
    """By name: the attack, and whether it learns from known records (then it needs no references)."""
    untold: dict[str, MembershipAttack] = {
        "loss-threshold": LossThreshold(),
        "modified-entropy": ModifiedEntropy(),
        "shadow-1": Shadow(shadows=1),
        "shadow-4": Shadow(shadows=4),
        "shadow-class": Shadow(shadows=4, outputs="full", per_class=True),
        "rmia-2": Rmia(references=2),
        "rmia-online": Rmia(mode="online", references=references),
        "lira": Lira(models=references),
        "lira-online": Lira(mode="online", models=references),
        "nasr": Nasr(shadows=4),
        "quantile-regression": QuantileRegression(),
    }
    told: dict[str, MembershipAttack] = {
        "nasr-known": Nasr(),
        "known-members": KnownMembers(),
        "known-members-raw": KnownMembers(features=("outputs",), standardise=False),
    }
    return {name: (attack, name in told) for name, attack in {**untold, **told}.items()}


def train(args: argparse.Namespace) -> Models:
    """Train all models and evaluate each on all records."""
    name, _, path = args.data.partition(":")
    place = {"path": path} if path else {}
    dataset = cast(Dataset, registry.create("dataset", name, {"label_noise": args.label_noise, **place}))
    images = load_pool(dataset)
    usable = (~images.is_test).nonzero().squeeze(1)
    random = torch.Generator().manual_seed(derive_seed(args.seed, "images"))
    order = usable[torch.randperm(len(usable), generator=random)]
    records, unused = images.take(order[: args.images]), images.take(order[args.images :])
    half = len(records) // 2
    training = Training(
        epochs=args.epochs, batch_size=BATCH, clients=CLIENTS, learning_rate=args.learning_rate, loss=args.loss
    )
    public = public_settings(dataset, images, training, (half // CLIENTS,) * CLIENTS, args.model)
    first = [torch.randperm(len(records), generator=random) < half for _ in range(args.models // 2)]
    member = torch.stack([part for learned in first for part in (learned, ~learned)])
    views, signals, seconds = [], [], []
    for index, learned in enumerate(member):
        started = time.process_time()
        data = records.select(learned.nonzero().squeeze(1))
        seed = derive_seed(args.seed, "model", index)
        views.append(train_shadow(FedSGD(), public, data, "client", seed, ObservedRounds(targets=1)))
        signals.append(read_signals(Knowledge(views[-1], FedSGD(), data, 0), records))
        seconds.append(time.process_time() - started)
        print(f"model {index + 1} of {args.models}: {seconds[-1]:.0f} CPU s", file=sys.stderr, flush=True)
    logits = {moment: torch.stack([s.logits[moment] for s in signals]) for moment in signals[0].logits}
    norms = {moment: torch.stack([s.norms[moment] for s in signals]) for moment in signals[0].norms}
    nobody = slice(len(records), len(records))
    pool = ShadowPool(records, slice(0, len(records)), nobody, nobody, True, member, Signals(logits, norms))
    return Models(views, pool, seconds, unused)


def attacked(attack: MembershipAttack, learns: bool, turn: Turn, view: View, seed: int) -> MembershipAnswer:
    """The attack's answer about the candidates of this turn."""
    told = turn.told
    members, others = (told.records.select(kind.nonzero().squeeze(1)) for kind in (told.members, ~told.members))
    # the known members stand in for the attacking client's own shard
    view = replace(view, holdings={view.parties[0]: members})
    knowledge = Knowledge(view, FedSGD(), others, seed)
    if isinstance(attack, ShadowAttack) and not learns:
        return attack.judge(knowledge.task, first_models(turn.pool, attack.needed), turn.target, seed)
    candidates = turn.pool.records.select(torch.arange(len(turn.pool.records))[turn.pool.candidates])
    return attack.infer(knowledge, MembershipTask(candidates, told if learns else None))


def mean_accuracy(pool: ShadowPool, rows: Tensor) -> float:
    """Mean over models of the accuracy on the rows (N, A) of each."""
    labels = pool.records.labels
    found = [accuracy(z[chosen], labels[chosen]) for z, chosen in zip(pool.signals.final, rows, strict=True)]
    return statistics.mean(found)


def spread(values: list[float]) -> str:
    """Mean ± standard deviation over targets."""
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def training_options(parser: argparse.ArgumentParser) -> None:
    """Which models are trained, on what."""
    parser.add_argument("--data", default="digits", help="digits, or npz:FILE")
    parser.add_argument("--images", type=int, default=1400)
    parser.add_argument("--label-noise", type=float, default=0.0)
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--models", type=int, default=16, help="N, an even number of at least 6")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--loss", choices=("mse", "ce"), default="mse")
    parser.add_argument("--seed", type=int, default=10)


def told_records(args: argparse.Namespace) -> Tensor:
    """For which images (A,) the attacker knows whether the target learned them: a random half."""
    order = torch.randperm(args.images, generator=torch.Generator().manual_seed(derive_seed(args.seed, "told")))
    known = torch.zeros(args.images, dtype=torch.bool)
    known[order[: args.images // 2]] = True
    return known


def main() -> None:
    """Print a Markdown table with one row per attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    training_options(parser)
    parser.add_argument("--attacks", nargs="+", default=None, help="names from the table; default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = train(args)
    inside, outside = (mean_accuracy(models.pool, rows) for rows in (models.pool.member, ~models.pool.member))
    known = told_records(args)
    attacks = {n: a for n, a in attacks_for(args.models - 2).items() if args.attacks is None or n in args.attacks}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in turns(models.pool, known):
        for name, (attack, learns) in attacks.items():
            started = time.process_time()
            answer = attacked(attack, learns, turn, models.views[turn.index], derive_seed(args.seed, name, turn.index))
            own = time.process_time() - started
            trained = attack.needed if isinstance(attack, ShadowAttack) and not learns else 0
            row = found[name]
            row["asr"].append(asr(answer.decisions, turn.truth))
            row["auc"].append(auc(answer.scores, turn.truth))
            row["tpr"].append(tpr_at_fpr(answer.scores, turn.truth, 0.01))
            row["cost"].append(own + trained * statistics.mean(models.seconds))
        print(f"target {turn.index + 1} of {args.models}", file=sys.stderr, flush=True)
    print(
        f"{args.data.partition(':')[0]}, {args.images} images, {args.model}, {args.models} models of {args.epochs} "
        f"epochs, seed {args.seed}; accuracy {inside:.3f} on what was learned, {outside:.3f} on the rest; "
        f"{sum(models.seconds):.0f} CPU s for all models\n\n"
        "| attack | ASR | AUC | TPR at 1 % FPR | CPU s a target |\n|---|---|---|---|---|"
    )
    for name, row in found.items():
        cells = [spread(row[part]) for part in ("asr", "auc", "tpr")]
        print(f"| `{name}` | {' | '.join(cells)} | {statistics.mean(row['cost']):.1f} |", flush=True)


if __name__ == "__main__":
    main()
