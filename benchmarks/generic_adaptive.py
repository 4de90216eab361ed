"""The generic adaptive attack against the hand-written ones, on all defenses.

    .venv/bin/python benchmarks/generic_adaptive.py --out generic.jsonl
    .venv/bin/python benchmarks/generic_adaptive.py --out generic.jsonl --table

Digits, a convnet of width 8 after one round of training, 5 clients, one record per client (the attacker's best case).
The server attacks. `message-ridge` gets a defense's own optional protocol and nothing else. The hand-written attacks
know the scheme: `phi-inversion`, `noise-aware`, `mix-and-match`, and matching with the defense's own transform
(`mimic`). Each defense has its default parameters, with epsilon 3 per round where it has one. One line per defense and
attack is added to the file; what is there already is not computed again. The table has a second part: why there is no
answer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch

from leakboard.attacks.base import Knowledge, ReconstructionAttack, ReconstructionTask
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.message_ridge import MessageRidge
from leakboard.attacks.reconstruction.mix_and_match import MixAndMatch
from leakboard.attacks.reconstruction.noise_aware import NoiseAware
from leakboard.attacks.reconstruction.phi_inversion import PhiInversion
from leakboard.attacks.reconstruction.regression.sources import message_of
from leakboard.attacks.reconstruction.ridge import RidgeInversion
from leakboard.contract.worlds import World, make_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense
from leakboard.metrics.identified import identified
from leakboard.metrics.matching import match
from leakboard.metrics.psnr import psnr

CLIENTS, SHARD, AUXILIARY, UNSEEN = 5, 114, 800, 400
GENERIC, LEARNED, PLAIN = "message-ridge", "ridge", "inverting-gradients"
MIMIC = f"{PLAIN}, mimic"


def attacks(iterations: int, samples: int) -> dict[str, ReconstructionAttack]:
    """The plain attack, the generic ones and the hand-written ones."""
    settings: dict[str, Any] = {"iterations": iterations, "tv": 0.03}
    return {
        PLAIN: InvertingGradients(**settings),
        LEARNED: RidgeInversion(samples=samples),
        GENERIC: MessageRidge(samples=samples),
        MIMIC: InvertingGradients(mimic=True, **settings),
        "noise-aware": NoiseAware(iterations=iterations),
        "phi-inversion": PhiInversion(**settings),
        "mix-and-match": MixAndMatch(attack=PLAIN, params=settings),
    }


def measured(world: World, attack: ReconstructionAttack, targets: int, seed: int) -> dict[str, Any]:
    """PSNR, the guess, how many images are identified, and CPU seconds; or why there is no answer."""
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, seed)
    task = ReconstructionTask("first", 0, targets, 1, None, (1,) * targets)
    started = time.process_time()
    try:
        answer = attack.reconstruct(knowledge, task)
    except Unsupported as why:
        return {"skipped": str(why)}
    seconds = time.process_time() - started
    truth = world.shards["client:0"].images[:targets]
    pairs = zip(answer.images, torch.split(truth, 1), strict=True)
    found = torch.cat([images[match(images, original)] for images, original in pairs])
    guess = world.auxiliary.images.mean(0).expand_as(truth)
    decoys = torch.cat([world.auxiliary.images, world.unseen.images])
    return {
        "psnr": psnr(found, truth).tolist(),
        "guess": psnr(guess, truth).tolist(),
        "identified": identified(found, truth, decoys).tolist(),
        "seconds": seconds,
        "flags": list(answer.flags),
        **answer.diagnostics,
    }


def transforms(world: World) -> bool:
    """Whether the defense has a transform of its own that `mimic` would use."""
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 0)
    gradients = [gradient for reading in knowledge.readings() for gradient in reading.gradients.values()]
    hooks = (world.defense.mimic, world.defense.mimic_records)
    return any(hook(gradient, knowledge.public) is not None for gradient in gradients for hook in hooks)


def holds_messages(world: World, targets: int) -> bool:
    """Whether the view holds the victim's own message of any target; otherwise `message-ridge` is `ridge`."""
    knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, 0)
    problems = ReconstructionTask("first", 0, targets, 1, None, (1,) * targets).problems(knowledge)
    return any(problem.gradient.records == 1 and message_of(knowledge, problem) for problem in problems)


def reasons(rows: list[dict[str, Any]]) -> str:
    """Why an attack has no answer, with the defenses that share the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "skipped" in row:
            why = row["skipped"].replace(f"'{row['defense']}'", "the defense")
            found.setdefault((row["attack"], why), []).append(row["defense"])
    return "\n".join(f"- `{name}`, {', '.join(own)}: {why}" for (name, why), own in found.items())


def table(rows: list[dict[str, Any]]) -> str:
    """One row per defense: PSNR (identified) of every attack."""
    names = list(attacks(1, 8))
    lines = ["| defense | guess | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for defense in dict.fromkeys(row["defense"] for row in rows):
        own = {row["attack"]: row for row in rows if row["defense"] == defense}
        guesses = [statistics.mean(row["guess"]) for row in own.values() if "guess" in row]
        cells = []
        for name in names:
            row = own.get(name, {})
            shown = f"{statistics.mean(row['psnr']):.1f} ({sum(row['identified']):.0f})" if "psnr" in row else "-"
            cells.append(shown)
        floor = f"{guesses[0]:.1f}" if guesses else "-"
        lines.append(f"| `{defense}` | {floor} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(out: Path, row: dict[str, Any]) -> None:
    """Add a line."""
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Add one line per defense and attack to a file, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--targets", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defenses", nargs="+", default=sorted(registry.entries("defense")))
    parser.add_argument("--attacks", nargs="+", choices=list(attacks(1, 8)), default=list(attacks(1, 8)))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    if args.table:
        print(f"{table(rows)}\n\n{reasons(rows)}")
        return
    done = {(row["defense"], row["attack"]) for row in rows}
    for name in args.defenses:
        chosen = {n: a for n, a in attacks(args.iterations, args.samples).items() if n in args.attacks}
        asked = {n: attack for n, attack in chosen.items() if (name, n) not in done}
        if not asked:
            continue
        defense = registry.create("defense", name)
        assert isinstance(defense, Defense)
        try:
            world = make_world(
                defense,
                model="convnet",
                model_parameters={"width": 8},
                clients=CLIENTS,
                shard=SHARD,
                rounds=1,
                batch_size=SHARD,
                learning_rate=0.05,
                targets=args.targets,
                seed=args.seed,
                auxiliary=AUXILIARY,
                unseen=UNSEEN,
            )
        except Unsupported as why:
            write(args.out, {"defense": name, "attack": "all", "skipped": str(why)})
            continue
        if MIMIC in asked and not transforms(world):
            del asked[MIMIC]
            write(args.out, {"defense": name, "attack": MIMIC, "skipped": f"the defense has no transform: as {PLAIN}"})
        read: dict[str, Any] = {}
        for label, attack in asked.items():
            if label == GENERIC and "psnr" in read and not holds_messages(world, args.targets):
                row = {**read, "attack": GENERIC, "note": "the view holds no message of the victim: as ridge"}
            else:
                row = {"defense": name, "attack": label, **measured(world, attack, args.targets, args.seed)}
            read = row if label == LEARNED else read
            write(args.out, {**row, "samples": args.samples, "iterations": args.iterations, "seed": args.seed})
            print({key: row.get(key) for key in ("defense", "attack", "psnr", "seconds", "skipped")}, flush=True)


if __name__ == "__main__":
    main()
