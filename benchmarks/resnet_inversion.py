"""Does `resnet-inversion` break a ResNet without batch norm at batch 1? One JSON line per image, setting and variant.

    # 32 images, untrained and trained weights; a line of `full` has the score after each stage
    .venv/bin/python benchmarks/resnet_inversion.py --data npz:FILE --images 32 --rounds 0 1500 --out resnet.jsonl
    # ablation and other initialisations
    .venv/bin/python benchmarks/resnet_inversion.py --data npz:FILE --images 8 --out resnet.jsonl \\
        --variants no-bend no-prior no-local cosine
    .venv/bin/python benchmarks/resnet_inversion.py --data npz:FILE --images 8 --seeds 1 2 --out resnet.jsonl
    # the table of what is there so far
    .venv/bin/python benchmarks/resnet_inversion.py --out resnet.jsonl --table
    # tuning: auxiliary victims, seed 1000
    .venv/bin/python benchmarks/resnet_inversion.py --data npz:FILE --victims auxiliary --images 4 --out tuning.jsonl

A run that was ended continues where it was: lines that are there are not computed again, and trained weights are kept
beside the output. The attack recovers each residual itself. "Identified": the truth correlates best with the
reconstruction among itself and 999 images that are neither members nor auxiliary.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks._federation import public_settings
from benchmarks.inversion_quality import CLIENTS, Given
from leakboard.attacks.base import Inversion, Knowledge, ReconstructionAttack
from leakboard.attacks.reconstruction.regression.sources import source_of
from leakboard.attacks.reconstruction.resnet_inversion import ResNetInversion
from leakboard.core import registry
from leakboard.datasets.base import Dataset, LabelledImages
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import make_splits
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import Training, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import View
from leakboard.metrics.psnr import psnr

#: parameters of the attack by variant; `cosine` is the plain matching attack for comparison
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "ridge": {"rounds": 0, "iterations": 0},
    "ridge+local": {"iterations": 0},
    "no-local": {"rounds": 0},
    "no-bend": {"bent": False},
    "no-prior": {"prior": 0.0},
    "always-match": {"accept": 1e9},
}
COSINE = {"tv": 0.3, "iterations": 1000}
DECOYS = 999
#: columns of the table that are plain means
AVERAGED = ("prior", "identified", "cpu_seconds", "accuracy")


def main() -> None:
    """Compute what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="digits, or npz:FILE")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--victims", choices=["auxiliary", "members"], default="members")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="leave out the images before this one; for parallel jobs")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="initialisations (auxiliary: 1000 is added)")
    parser.add_argument("--rounds", type=int, nargs="*", default=[0], help="rounds of fedsgd before the attack")
    parser.add_argument("--batch", type=int, default=16, help="records per client and round of that training")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="of that training; momentum is 0.9")
    parser.add_argument("--variants", nargs="*", default=["full"], choices=[*VARIANTS, "cosine"])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters for all variants")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the table and compute nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.table:
        for rounds in args.rounds:
            for seed in args.seeds:
                _one_setting(args, seed, rounds)
    print(table(lines_of(args.out)))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The finished lines of a file; one that was cut off by a kill is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _one_setting(args: argparse.Namespace, seed: int, rounds: int) -> None:
    """All images and variants on one model."""
    done = {(e["victims"], e["seed"], e["rounds"], e["variant"], e["image"]) for e in lines_of(args.out)}
    wanted = [
        (variant, image)
        for image in range(args.first, args.images)
        for variant in args.variants
        if (args.victims, seed, rounds, variant, image) not in done
    ]
    if not wanted:
        return
    knowledge, model, victims, decoys, accuracy = _setting(args, seed, rounds)
    extra = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    for variant, image in wanted:
        truth, label = victims.images[image : image + 1], victims.labels[image : image + 1]
        problem = Inversion(model, Gradient(knowledge.task.gradient(model, truth, label)[0], 1, 1), None)
        said: list[str] = []
        heard, started = replace(knowledge, progress=said.append), time.process_time()
        stages = []
        for name, found in _answers(heard, problem, variant, extra):
            seconds = round(time.process_time() - started, 1)
            scores = {"psnr": float(psnr(found, truth)[0]), "identified": identified(found[0], truth[0], decoys)}
            stages.append({"stage": name, **scores, "cpu_seconds": seconds})
        entry = {
            "victims": args.victims,
            "seed": seed,
            "rounds": rounds,
            "variant": variant,
            "image": image,
            "prior": float(psnr(knowledge.auxiliary.images.mean(0, keepdim=True), truth)[0]),
            "accuracy": accuracy,
            **stages[-1],
            "stages": stages,
            "notes": said,
        }
        with args.out.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(json.dumps(entry), flush=True)


def _answers(
    knowledge: Knowledge, problem: Inversion, variant: str, extra: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The name and the images (1, C, H, W) of every stage of a variant; the last one is its answer."""
    if variant == "cosine":
        attack = cast(ReconstructionAttack, registry.create("attack", "inverting-gradients", {**COSINE, **extra}))
        asked = Given("first", 0, 1, 1, None, (1,), (problem,))
        yield variant, attack.reconstruct(knowledge, asked).images[0]
        return
    own = ResNetInversion.model_validate({**VARIANTS[variant], **extra})
    for stage in own.stages(knowledge, problem, source_of(knowledge, problem)):
        yield stage.name, stage.images


def _setting(
    args: argparse.Namespace, seed: int, rounds: int
) -> tuple[Knowledge, Parameters, LabelledImages, Tensor, float]:
    """What the attacker knows, the model, the victims, the decoys and the model's accuracy."""
    base = seed + 1000 if args.victims == "auxiliary" else seed
    name, _, path = args.data.partition(":")
    dataset = cast(Dataset, registry.create("dataset", name, {"path": path} if path else {}))
    pool = load_pool(dataset)
    splits = make_splits(pool, seed=base, clients=CLIENTS)
    training = Training(rounds=max(1, rounds), batch_size=args.batch, clients=CLIENTS, learning_rate=args.learning_rate)
    public = public_settings(dataset, pool, training, [len(shard) for shard in splits.shards], args.model)
    task = task_of(public)
    kept = args.out.with_suffix(f".{args.victims}-{seed}-{rounds}.safetensors")
    if not rounds:
        model = task.initial(base)
    elif kept.exists():
        model = load_file(str(kept))
    else:
        shards = {client_name(i): pool.take(shard) for i, shard in enumerate(splits.shards)}
        model = Federation(FedSGD(), public, shards, None, base).run().model
        save_file({n: v.contiguous() for n, v in model.items()}, str(kept))
    test = pool.take(splits.test[:1000])
    accuracy = float((task.predict(model, test.images).argmax(1) == test.labels).double().mean())
    own = args.victims == "auxiliary"
    victims = pool.take((splits.auxiliary if own else splits.shards[0])[: args.images])
    auxiliary = pool.take(splits.auxiliary[args.images :] if own else splits.auxiliary)
    decoys = pool.take(splits.non_members[:DECOYS]).images
    knowledge = Knowledge(View("server", ("server",), public, (), {}, {}), FedSGD(), auxiliary, base)
    return knowledge, model, victims, decoys, accuracy


def identified(found: Tensor, truth: Tensor, decoys: Tensor) -> bool:
    """Whether the truth (C, H, W) correlates better with the reconstruction than every decoy (N, C, H, W) does."""
    rows = torch.cat([truth[None], decoys]).flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    own = found.flatten() - found.mean()
    likeness = (rows @ own) / (rows.norm(dim=1) * own.norm()).clamp(min=1e-12)
    return int(likeness.argmax()) == 0


def table(lines: list[dict[str, Any]]) -> str:
    """Mean, smallest and largest PSNR, the identified share and the CPU seconds by setting, variant and stage."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        setting = line["victims"], line["rounds"], line["variant"]
        groups[*setting, ""].append(line)
        firsts = {stage["stage"]: stage for stage in reversed(line["stages"])}
        for name, stage in firsts.items():
            if len(firsts) > 1:
                groups[*setting, f", after {name}"].append({**line, **stage})
    shown = [
        "| victims | rounds | variant | n | seeds | PSNR | prior | identified | CPU s per image | accuracy |",
        "|---" * 10 + "|",
    ]
    for (victims, rounds, variant, stage), rows in sorted(groups.items()):
        values = torch.tensor([row["psnr"] for row in rows])
        prior, share, cpu, accuracy = (mean(row[k] for row in rows) for k in AVERAGED)
        shown.append(
            f"| {victims} | {rounds} | {variant}{stage} | {len(rows)} | {len({row['seed'] for row in rows})} "
            f"| {values.mean():.1f} ({values.min():.1f} to {values.max():.1f}) "
            f"| {prior:.1f} | {share:.0%} | {cpu:.0f} | {accuracy:.2f} |"
        )
    return "\n".join(shown)


if __name__ == "__main__":
    main()
