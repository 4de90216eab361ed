"""LiRA and RMIA of LeakPro and ml_privacy_meter against ours: the same models, images and reference models.

    .venv/bin/python benchmarks/membership_peers.py --data npz:FILE --images 2500 --epochs 15 --loss ce \
        --leakpro PYTHON CHECKOUT --privacy-meter PYTHON CHECKOUT

Each peer runs in an environment of its own (PYTHON) from a checkout of its public repository. N models are trained once
(`membership_quality.py`), each is the target in turn, and all libraries get the outputs of the same models. So the
reference models, which are nearly all of the CPU time, are equal. Scores are compared on the images of which nobody is
told anything. A peer's attack has its own default settings. Ours takes thresholds and RMIA's population from the other
half of the images; LeakPro takes its population from all images, ml_privacy_meter from images that no model learned.
`--explain` adds rows of our RMIA with what the peers do: softmax at temperature 2 (LeakPro), and another a.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import numpy as np
import torch
from torch import Tensor

from benchmarks.membership_quality import Models, mean_accuracy, spread, told_records, train, training_options
from leakboard.attacks.base import Knowledge
from leakboard.attacks.membership.building_blocks.rotating_targets import first_models, turns
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack, Signals, read_signals
from leakboard.attacks.membership.lira import Lira
from leakboard.attacks.membership.rmia import Rmia
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.task import task_of
from leakboard.metrics.auc import auc
from leakboard.metrics.tpr_at_fpr import tpr_at_fpr

#: images that no model learned, for a peer that wants such a population
OUTSIDE = 500
MODES: tuple[Literal["online", "offline"], ...] = ("online", "offline")
Scores = dict[str, Tensor]


def ours(count: int) -> dict[str, ShadowAttack]:
    """Our attacks with so many reference models."""
    return {
        f"lira-online/{count}": Lira(mode="online", models=count),
        f"lira-offline/{count}": Lira(models=count),
        f"rmia-online/{count}": Rmia(mode="online", references=count),
        f"rmia-offline/{count}": Rmia(references=count),
    }


def variants(count: int) -> dict[tuple[str, str], tuple[Rmia, float]]:
    """Our RMIA with what peers do differently: by name and label, with the temperature of the softmax."""
    found = {(f"rmia-{mode}/{count}", "ours, T 2"): (Rmia(mode=mode, references=count), 2.0) for mode in MODES}
    for share in (0.0, 0.6, 0.9):
        found[f"rmia-offline/{count}", f"ours, a {share}"] = Rmia(references=count, offline_a=share), 1.0
    return found


def softened(signals: Signals, temperature: float) -> Signals:
    """The same outputs, divided by a temperature."""
    return Signals({moment: value / temperature for moment, value in signals.logits.items()}, signals.norms)


def save_signals(args: argparse.Namespace, models: Models, path: Path) -> None:
    """What `_membership_peer.py` reads."""
    outside = models.unused.select(torch.arange(min(OUTSIDE, len(models.unused))))
    seen = [read_signals(Knowledge(view, FedSGD(), outside, 0), outside).final for view in models.views]
    np.savez(
        path,
        logits=models.pool.signals.final.numpy(),
        member=models.pool.member.numpy(),
        labels=models.pool.records.labels.numpy(),
        outside=torch.stack(seen).numpy(),
        outside_labels=outside.labels.numpy(),
        counts=np.array(args.references),
    )


def run_peer(peer: str, place: list[str], folder: Path) -> tuple[Scores, dict[str, float]]:
    """Scores (N, A) and CPU seconds of a peer's attacks by name."""
    worker, made = Path(__file__).parent / "_membership_peer.py", folder / f"{peer}.npz"
    command = [place[0], str(worker), peer, place[1], str(folder / "signals.npz"), str(made)]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"})
    found: Any = np.load(made)
    scores = {key: torch.from_numpy(found[key]) for key in found.files if not key.startswith("seconds/")}
    return scores, {key: float(found[f"seconds/{key}"]) for key in scores}


def main() -> None:
    """Print a Markdown table with one row per attack, library and number of references."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    training_options(parser)
    parser.add_argument("--references", type=int, nargs="+", default=[4, 14], help="even numbers, at most N - 2")
    parser.add_argument("--leakpro", nargs=2, metavar=("PYTHON", "CHECKOUT"))
    parser.add_argument("--privacy-meter", nargs=2, metavar=("PYTHON", "CHECKOUT"))
    parser.add_argument("--explain", action="store_true", help="rows of our RMIA with what the peers do differently")
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = train(args)
    inside, outside = (mean_accuracy(models.pool, rows) for rows in (models.pool.member, ~models.pool.member))
    told = told_records(args)
    truths: list[Tensor] = []
    found: dict[tuple[str, str], list[Tensor]] = {}
    seconds: dict[tuple[str, str], float] = {}
    for turn in turns(models.pool, told):
        truths.append(turn.truth)
        task = task_of(models.views[turn.index].public)
        for name, attack in ((n, a) for count in args.references for n, a in ours(count).items()):
            started = time.process_time()
            answer = attack.judge(task, first_models(turn.pool, attack.needed), turn.target, turn.index)
            seconds[name, "ours"] = seconds.get((name, "ours"), 0.0) + time.process_time() - started
            found.setdefault((name, "ours"), []).append(answer.scores)
        for key, (rmia, heat) in (item for count in args.references * args.explain for item in variants(count).items()):
            pool = first_models(turn.pool, rmia.needed)
            pool = replace(pool, signals=softened(pool.signals, heat))
            answer = rmia.judge(task, pool, softened(turn.target, heat), turn.index)
            found.setdefault(key, []).append(answer.scores)
            seconds[key] = 0.0
    with tempfile.TemporaryDirectory() as place:
        save_signals(args, models, Path(place) / "signals.npz")
        for peer, given in (("leakpro", args.leakpro), ("privacy-meter", args.privacy_meter)):
            if given is None:
                continue
            scores, spent = run_peer(peer, [str(Path(part).absolute()) for part in given], Path(place))
            for name, made in scores.items():
                found[name, peer], seconds[name, peer] = [row[~told] for row in made], spent[name]
    print(
        f"{args.data.partition(':')[0]}, {args.images} images, label noise {args.label_noise}, {args.model}, loss "
        f"{args.loss}, {args.models} models of {args.epochs} epochs, seed {args.seed}; accuracy {inside:.3f} on what "
        f"was learned, {outside:.3f} on the rest; {statistics.mean(models.seconds):.1f} CPU s per model\n\n"
        "| attack | references | library | AUC | TPR at 1 % FPR | CPU s of the scoring per target |\n"
        "|---|---|---|---|---|---|"
    )
    for (name, library), rows in sorted(found.items(), key=lambda item: (item[0][0].split("/")[0], item[0][0])):
        attack_name, _, count = name.partition("/")
        areas = [auc(row, truth) for row, truth in zip(rows, truths, strict=True)]
        rates = [tpr_at_fpr(row, truth, 0.01) for row, truth in zip(rows, truths, strict=True)]
        own = seconds[name, library] / len(rows)
        print(f"| {attack_name} | {count} | {library} | {spread(areas)} | {spread(rates)} | {own:.2f} |", flush=True)


if __name__ == "__main__":
    main()
