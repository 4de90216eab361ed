"""The tables of docs/attacks.md that need no benchmark of their own; every table is one function.

    .venv/bin/python benchmarks/attack_figures.py spear robbing cocktail sums --data npz:FILE
    .venv/bin/python benchmarks/attack_figures.py fedmia correlated
    .venv/bin/python benchmarks/attack_figures.py tuning --data npz:FILE --seeds 1000 1004

`spear`, `robbing` and `cocktail` attack one batch of a client and a network as it is initialised, both anew for every
seed. `sums` attacks what the server of a real `secagg` round opens: the mean of five clients. `fedmia` and `correlated`
are small federations like those of the tests (`correlated` imports one: it needs pytest). All run without noise but
`correlated`. `tuning` tries parameters on victims that no other table has: auxiliary images, other federations.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
from torch import Tensor

from benchmarks._federation import public_settings
from benchmarks.inversion_quality import CLIENTS, Given
from leakboard.attacks.base import (
    Inversion,
    Knowledge,
    MembershipTask,
    ReconstructionAnswer,
    ReconstructionAttack,
    ReconstructionTask,
)
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.correlated_noise import CorrelatedNoise
from leakboard.attacks.membership.fedmia import FedMia
from leakboard.attacks.membership.gradient_membership import GradientMembership
from leakboard.attacks.membership.quantile import QuantileRegression
from leakboard.attacks.membership.update_inference import UpdateInference
from leakboard.attacks.reconstruction.cocktail_party import CocktailParty
from leakboard.attacks.reconstruction.robbing_the_fed import RobbingTheFed
from leakboard.attacks.reconstruction.spear_plus_plus import SpearPlusPlus
from leakboard.contract.worlds import make_world
from leakboard.core import registry
from leakboard.datasets.base import Dataset, LabelledImages
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import make_splits
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.building_blocks.imprint import imprinted
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.mf import Mf
from leakboard.defenses.secagg import SecAgg
from leakboard.federation.models.mlp import Mlp
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Training, client_name
from leakboard.federation.task import Task, task_of
from leakboard.federation.view import make_view, parse_threat
from leakboard.metrics.auc import auc
from leakboard.metrics.psnr import psnr

#: a title, the columns, and rows as they come in
Table = tuple[str, str, Iterable[str]]
#: the federations of `fedmia`
SMALL: dict[str, Any] = {"clients": 6, "rounds": 1, "unseen": 120, "auxiliary": 100}
#: a federation of `tuning` whose model knows its members: digits with wrong labels
OVERFITTED: dict[str, Any] = {"shard": 30, "batch_size": 30, "rounds": 120, "learning_rate": 0.05, "label_noise": 0.2}
OVERFITTED |= {"model_parameters": {"hidden": [64]}, "unseen": 300, "auxiliary": 500}
#: the largest pixel error of an exact image, the PSNR of a recovered record, and starts of `spear` (default / 4)
EXACT, RECOVERED, STARTS = 1e-3, 40.0, 2048


class Victim:
    """A client's records, what the server knows, and the gradients of batches."""

    def __init__(self, data: str, model: Mlp, defense: Defense | None = None, observe: ObservedRounds | None = None):
        self.defense = defense or FedSGD()
        name, _, path = data.partition(":")
        dataset = cast(Dataset, registry.create("dataset", name, {"path": path} if path else {}))
        pool = load_pool(dataset)
        splits = make_splits(pool, seed=0, clients=CLIENTS)
        training = Training(rounds=1, batch_size=16, clients=CLIENTS, learning_rate=0.05)
        sizes = [len(shard) for shard in splits.shards]
        public = public_settings(dataset, pool, training, sizes, model, defense=self.defense)
        shards = {client_name(i): pool.take(shard) for i, shard in enumerate(splits.shards)}
        outcome = Federation(self.defense, public, shards, observe, 0).run()
        self.view = make_view(outcome.transcript, parse_threat("server", CLIENTS), public, outcome.secrets, shards)
        self.task, self.records, self.auxiliary = task_of(public), shards["client:0"], pool.take(splits.auxiliary)

    def batch(self, size: int, seed: int, *, auxiliary: bool = False) -> LabelledImages:
        """Records of the client, or auxiliary ones, chosen by a seed."""
        records = self.auxiliary if auxiliary else self.records
        order = torch.randperm(len(records), generator=torch.Generator().manual_seed(seed))
        return records.select(order[:size])

    def attacked(
        self,
        attack: ReconstructionAttack,
        batch: LabelledImages,
        seed: int,
        sent: Callable[[Task, Parameters], Parameters | None] = lambda task, model: model,
    ) -> tuple[ReconstructionAnswer, float]:
        """The attack's answer about the gradient of a batch, and its CPU seconds. `sent` changes the model."""
        model = sent(self.task, self.task.initial(seed))
        assert model is not None
        gradient = Gradient(self.task.gradient(model, batch.images, batch.labels)[0], 1, len(batch))
        asked = Given("first", 0, 1, len(batch), None, (len(batch),), (Inversion(model, gradient, None),))
        started = time.process_time()
        answer = attack.reconstruct(Knowledge(self.view, FedSGD(), self.auxiliary, seed), asked)
        return answer, time.process_time() - started


def best(images: Tensor, batch: LabelledImages) -> Tensor:
    """The PSNR (B,) of every record with the best of some images (M, C, H, W)."""
    return torch.stack([psnr(images, one.expand_as(images)).max() for one in batch.images])


def exact_share(images: Tensor, batch: LabelledImages) -> float:
    """The share of records of which some image (M, C, H, W) has no pixel that is off by `EXACT` or more."""
    off = (images[:, None] - batch.images[None]).abs().amax((2, 3, 4)).amin(0)
    return float((off < EXACT).double().mean())


def guesses(victim: Victim, count: int, batch: LabelledImages, seed: int) -> tuple[float, float]:
    """The PSNR of the mean auxiliary image, and of the best of `count` random ones."""
    mean = psnr(victim.auxiliary.images.mean(0).expand_as(batch.images), batch.images)
    drawn = torch.randperm(len(victim.auxiliary), generator=torch.Generator().manual_seed(seed))[:count]
    return float(mean.mean()), float(best(victim.auxiliary.images[drawn], batch).mean())


def spear(data: str, seeds: range) -> Table:
    """How many batches `spear++` recovers exactly, by size."""

    def row(records: int, width: int) -> str:
        victim = Victim(data, Mlp(hidden=(width, width // 2), bias=False))
        share, flagged, seconds = list[float](), 0, list[float]()
        for seed in seeds:
            batch = victim.batch(records, seed)
            answer, spent = victim.attacked(SpearPlusPlus(samples=STARTS), batch, seed)
            share.append(exact_share(answer.images[0], batch))
            flagged += bool(answer.flags)
            seconds.append(spent)
        times = f"{statistics.mean(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        exact = f"{share.count(1.0)} of {len(seeds)} | {statistics.mean(share):.2f} | {flagged}"
        return f"{records} | {width} | {exact} | {times} | 2^{records - 1}"

    return (
        f"spear++, {data.partition(':')[0]}, mlp (m, m/2) without biases",
        "records | rows m | batches exact | images exact | flagged | CPU s per batch | draws of `analytic`",
        (row(*size) for size in ((20, 200), (24, 256), (32, 512), (48, 512), (32, 256))),
    )


def cocktail(data: str, seeds: range) -> Table:
    """The PSNR of `cocktail-party`, by the number of records, with and without biases, and on digits."""

    def row(images: str, records: int, bias: bool) -> str:
        victim = Victim(images, Mlp(hidden=(256, 128), bias=bias))
        scores, guessed, seconds = [], [], []
        for seed in seeds:
            batch = victim.batch(records, seed)
            answer, spent = victim.attacked(CocktailParty(), batch, seed)
            scores.append(float(best(answer.images[0], batch).mean()))
            guessed.append(guesses(victim, records, batch, seed))
            seconds.append(spent)
        named = f"{images.partition(':')[0]} | {records} | {'yes' if bias else 'no'}"
        return f"{named} | {_scored(scores, guessed)} | {statistics.mean(seconds):.1f}"

    cases = (*((data, size, True) for size in (4, 16, 32, 64, 128)), (data, 4, False), ("digits", 24, True))
    return (
        "cocktail-party, mlp (256, 128)",
        "images | records | biases | PSNR (dB) | mean image | best of as many random images | CPU s per batch",
        (row(*case) for case in cases),
    )


def sums(data: str, seeds: range) -> Table:
    """The PSNR of `cocktail-party` on the mean of five clients that `secagg` opens, by the records of each client."""

    def row(records: int) -> str:
        observe = ObservedRounds(rounds=("first",), probe_batch=records, targets=len(seeds))
        victim = Victim(data, Mlp(hidden=(256, 128), bias=True), SecAgg(), observe)
        knowledge = Knowledge(victim.view, victim.defense, victim.auxiliary, seeds[0])
        asked = ReconstructionTask("first", 0, len(seeds), records, None, (CLIENTS * records,) * len(seeds))
        started = time.process_time()
        answer = CocktailParty().reconstruct(knowledge, asked)
        seconds = (time.process_time() - started) / len(seeds)
        batches = [victim.records.select(torch.arange(i * records, (i + 1) * records)) for i in range(len(seeds))]
        scores = [float(best(images, own).mean()) for images, own in zip(answer.images, batches, strict=True)]
        guessed = [guesses(victim, CLIENTS * records, own, seed) for own, seed in zip(batches, seeds, strict=True)]
        return f"{records} | {CLIENTS * records} | {_scored(scores, guessed)} | {seconds:.1f}"

    return (
        f"cocktail-party on secagg's mean of {CLIENTS} clients, mlp (256, 128) with biases",
        "records per client | in the mean | PSNR (dB) | mean image | best of as many random images | CPU s per mean",
        (row(records) for records in (1, 4, 16)),
    )


def _scored(scores: list[float], guessed: list[tuple[float, float]]) -> str:
    """Mean and range of an attack's scores, and the means of both guesses."""
    mean, random = (statistics.mean(column) for column in zip(*guessed, strict=True))
    return f"{statistics.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f}) | {mean:.1f} | {random:.1f}"


def robbing(data: str, seeds: range) -> Table:
    """How many records of a batch `robbing-the-fed` recovers."""

    def row(records: int, bins: int) -> str:
        victim = Victim(data, Mlp(hidden=(bins, 64), bias=True))
        found = []
        for seed in seeds:
            batch = victim.batch(records, seed)
            answer, _ = victim.attacked(RobbingTheFed(), batch, seed, imprinted)
            found.append(float((best(answer.images[0], batch) > RECOVERED).sum()))
        expected, mean = records * (1 - 1 / bins) ** (records - 1), statistics.mean(found)
        return f"{records} | {bins} | {mean:.1f} ({min(found):.0f} to {max(found):.0f}) | {expected:.1f}"

    return (
        f"robbing-the-fed, {data.partition(':')[0]}",
        "records | rows | recovered (more than 40 dB) | expected",
        (row(*case) for case in ((64, 128), (100, 200), (32, 1000), (64, 1000))),
    )


def fedmia(data: str, seeds: range) -> Table:
    """The AUC of `fedmia` with and without the other clients as the null: 6 clients, one round of digits, mlp."""

    def row(size: int, hidden: int) -> str:
        found: dict[str, list[float]] = {"others": [], "none": []}
        for seed in seeds:
            world = make_world(
                FedSGD(), model_parameters={"hidden": [hidden]}, shard=size, batch_size=size, seed=seed, **SMALL
            )
            candidates = joined(world.shards["client:0"], world.unseen)
            for null, areas in found.items():
                knowledge = Knowledge(world.view("server"), world.defense, world.auxiliary, seed)
                answer = FedMia.model_validate({"null": null}).infer(
                    knowledge, MembershipTask(candidates, round_index=0)
                )
                areas.append(auc(answer.scores, torch.arange(len(candidates)) < size))
        gains = [a - b for a, b in zip(*found.values(), strict=True)]
        return f"{size}, {hidden} | " + " | ".join(_mean(values) for values in (*found.values(), gains))

    return (
        "fedmia, 6 clients, one round of digits, cosine, ± standard error",
        "batch, hidden units | AUC with the null | AUC without | difference",
        (row(*case) for case in ((4, 16), (6, 64), (4, 64))),
    )


def correlated(data: str, seeds: range) -> Table:
    """The AUC of `correlated-noise` and of one round alone, in the setting of its test."""
    from tests.attacks.test_correlated_noise import SETTING, ReusedCentral, ReusedShares, asked
    from tests.defenses.makings import create
    from tests.defenses.small import small_run

    def row(noise: str, defense: Defense) -> str:
        threat, alone = ("client", UpdateInference()) if isinstance(defense, Mf) else ("server", GradientMembership())
        found: dict[bool, list[float]] = {True: [], False: []}
        left = []
        for seed in seeds:
            made = small_run(defense, seed=seed, **SETTING)
            for own, attack in ((True, CorrelatedNoise()), (False, alone)):
                answer, truth = asked(attack, made, threat)
                found[own].append(auc(answer.scores, truth))
                left += [answer.diagnostics["noise_over_plain"]] if own else []
        return f"{noise} | {threat} (`{defense.name}`) | {_mean(found[True])} | {_mean(found[False])} | {_mean(left)}"

    return (
        "correlated-noise, last of 8 rounds, ± standard error",
        "noise | attacker | `correlated-noise` | one round alone | noise left / noise of the best single combination",
        (
            *(row("the same in every round", defense) for defense in (ReusedShares(band=4), ReusedCentral(band=4))),
            *(row("calibrated, ε = 3", create(name, band=4, epsilon=3.0)) for name in ("ddp-mf", "mf")),
        ),
    )


def tuning(data: str, seeds: range) -> Table:
    """Scores by one parameter at a time: PSNR of `cocktail-party`, exact records of `spear++`, AUC of the quantiles."""

    def cocktails(iterations: int) -> str:
        victim, attack = Victim(data, Mlp(hidden=(256, 128), bias=True)), CocktailParty(iterations=iterations)
        batches = {seed: victim.batch(32, seed, auxiliary=True) for seed in seeds}
        answers = {seed: victim.attacked(attack, batch, seed) for seed, batch in batches.items()}
        scores = [float(best(answers[seed][0].images[0], batch).mean()) for seed, batch in batches.items()]
        seconds = statistics.mean(spent for _, spent in answers.values())
        return (
            f"`cocktail-party`, 32 records | iterations {iterations} | {statistics.mean(scores):.1f} dB | {seconds:.1f}"
        )

    def spears(samples: int) -> str:
        victim, attack = Victim(data, Mlp(hidden=(240, 120), bias=False)), SpearPlusPlus(samples=samples)
        exact, seconds = list[float](), list[float]()
        for seed in seeds:
            batch = victim.batch(24, seed, auxiliary=True)
            answer, spent = victim.attacked(attack, batch, seed)
            exact.append(exact_share(answer.images[0], batch))
            seconds.append(spent)
        share = f"{statistics.mean(exact):.0%} of records exact"
        return f"`spear++`, 24 records, 240 rows | samples {samples} | {share} | {statistics.mean(seconds):.1f}"

    def quantiles(**chosen: Any) -> str:
        areas, seconds = list[float](), list[float]()
        for seed in seeds:
            world = make_world(FedSGD(), seed=seed, **OVERFITTED)
            members = joined(*world.shards.values())
            knowledge = Knowledge(world.view("client"), world.defense, world.auxiliary, seed)
            started = time.process_time()
            answer = QuantileRegression(**chosen).infer(knowledge, MembershipTask(joined(members, world.unseen)))
            seconds.append(time.process_time() - started)
            areas.append(auc(answer.scores, torch.arange(len(answer.scores)) < len(members)))
        told = ", ".join(f"{name} {value}" for name, value in chosen.items())
        return f"`quantile-regression`, digits | {told} | AUC {_mean(areas)} | {statistics.mean(seconds):.1f}"

    return (
        "victims of `tuning`",
        "attack | parameter | score | CPU s",
        (
            *(cocktails(iterations) for iterations in (100, 250, 500, 1000)),
            *(spears(samples) for samples in (512, 2048, 8192)),
            *(quantiles(epochs=epochs) for epochs in (50, 200, 800)),
            *(quantiles(learning_rate=rate) for rate in (1e-3, 3e-3, 1e-2)),
            *(quantiles(hidden=hidden) for hidden in ((16,), (64, 64), (256, 256))),
        ),
    )


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) / len(values) ** 0.5:.2f}"


TABLES = {made.__name__: made for made in (spear, robbing, cocktail, sums, fedmia, correlated, tuning)}


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=TABLES)
    parser.add_argument("--data", default="digits", help="digits, or npz:FILE")
    parser.add_argument("--seeds", type=int, nargs=2, default=(100, 105), metavar=("FROM", "TO"), help="TO is left out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.tables:
        title, columns, rows = TABLES[name](args.data, range(*args.seeds))
        print(f"\n{title}, seeds {args.seeds[0]} to {args.seeds[1] - 1}\n\n| {columns} |")
        print("|---" * (columns.count("|") + 1) + "|", flush=True)
        for row in rows:
            print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
