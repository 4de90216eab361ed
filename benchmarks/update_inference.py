"""What a client sees of the others' updates under model perturbation, with the settings of the suite `quick`.

    .venv/bin/python benchmarks/update_inference.py --defense mp-dp --seed 0
    .venv/bin/python benchmarks/update_inference.py --defense mp --rounds 1     # only the first round

A client gets the model before and after the step of a round, each under a fresh perturbation. For each
layer this prints the cosine between the true step and the step that the client computes in canonical form
(`update_between` in attacks/building_blocks/stripping.py), from the models as received, and after stripping r with its
own labelled records. For the first round, if nothing is clipped or noised, it also prints the cosine of the others'
mean first-layer gradient, after the client's own part is subtracted.

This is about the direction of the step. The attack `update-inference` measures what it tells about single records.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
from torch import Tensor

from benchmarks._federation import public_settings
from leakboard.attacks.building_blocks.stripping import Received, Stripper, others_gradient, strip, update_between
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.datasets.base import Dataset, LabelledImages
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import make_splits
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.federation.outcome import Outcome
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import SERVER, ObservedRounds, Public, Training, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import make_view, parse_threat
from leakboard.suites.schema import load_suite

ATTACKER = 1


def main() -> None:
    """Train, then print one line per round and layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--defense", default="mp-dp")
    parser.add_argument("--param", nargs="*", default=[], metavar="NAME=VALUE", help="parameters of the defense")
    parser.add_argument("--rounds", type=int, help="number of rounds (default: the suite's)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    params = dict(given.partition("=")[::2] for given in args.param)
    defense = registry.create("defense", args.defense, params)
    if not isinstance(defense, ModelPerturbation):
        raise UserError(f"--defense must be one that perturbs the model; given: {args.defense}.")
    public, shards = setting(defense, args.rounds, args.seed)
    observe = ObservedRounds(rounds=("first", "last"), targets=1)
    outcome = Federation(defense, public, shards, observe, args.seed).run()
    for index, moment in outcome.observed.items():
        report(defense, outcome, shards, index, f"{args.defense} {moment} round")
    if defense.clip is None and 0 in outcome.observed:
        batches = batches_of(Federation(defense, public, shards, observe, args.seed))
        print(f"{args.defense} first round, others' gradient: cosine {others(defense, outcome, shards, batches):.4f}")


def setting(defense: ModelPerturbation, rounds: int | None, seed: int) -> tuple[Public, dict[str, LabelledImages]]:
    """Public settings and shards of `quick`."""
    suite = load_suite("quick")
    entry = suite.datasets[0]
    dataset = cast(Dataset, registry.create("dataset", entry.name, entry.params))
    pool = load_pool(dataset)
    given = suite.training.model_dump() | ({"rounds": rounds} if rounds else {})
    training = Training.model_validate(given)
    splits = make_splits(pool, seed=seed, clients=training.clients, partition=training.partition, alpha=training.alpha)
    model = registry.create("model", suite.model.name, suite.model.params)
    public = public_settings(dataset, pool, training, [len(shard) for shard in splits.shards], model, defense=defense)
    return public, {client_name(index): pool.take(shard) for index, shard in enumerate(splits.shards)}


def stripper_of(defense: ModelPerturbation, outcome: Outcome, shards: dict[str, LabelledImages]) -> Stripper:
    """The client's view, and the model that it computes from it."""
    threat = parse_threat("client", len(shards))
    assert threat.parties == (client_name(ATTACKER),)
    return Stripper(
        make_view(outcome.transcript, threat, outcome.public, outcome.secrets, shards), defense, "labelled", None
    )


def got(stripper: Stripper, index: int) -> tuple[Received, Received]:
    """The models before and after the step of a round, as received."""
    before, after = stripper.of("train", index), stripper.of("probe", index)
    assert before is not None
    assert after is not None
    return before, after


def truth(outcome: Outcome, index: int) -> tuple[Parameters, Parameters]:
    """The server's own models before and after the step."""
    found = {}
    for observation in outcome.transcript.observations:
        o = observation.context
        if o.round == index and o.kind in ("train", "probe"):
            found[o.kind] = observation.states[SERVER]["distributed"]
    return found["train"], found["probe"]


def report(
    defense: ModelPerturbation, outcome: Outcome, shards: dict[str, LabelledImages], index: int, title: str
) -> None:
    """Print one line per layer."""
    stripper = stripper_of(defense, outcome, shards)
    expanded, (before, after) = stripper.expanded, got(stripper, index)
    zero = torch.zeros(outcome.public.classes, dtype=torch.float64)
    plain = update_between(strip(before, zero, expanded), strip(after, zero, expanded), expanded.plain)
    rs = stripper.r(before), stripper.r(after)
    clean = update_between(strip(before, rs[0], expanded), strip(after, rs[1], expanded), expanded.plain)
    for name, value in update_between(*truth(outcome, index), expanded.plain).items():
        print(
            f"{title}, {name}: cosine {cosine(plain[name], value):.6f} as received, "
            f"{cosine(clean[name], value):.6f} stripped"
        )


def batches_of(again: Federation) -> dict[str, LabelledImages]:
    """Every client's records of the first round; each client knows its own."""
    return {name: again.shards[name].select(again._next_positions(name)) for name in again.public.clients}


def others(
    defense: ModelPerturbation, outcome: Outcome, shards: dict[str, LabelledImages], batches: dict[str, LabelledImages]
) -> float:
    """The cosine of the others' mean first-layer gradient as the client infers it with the true one."""
    stripper, public = stripper_of(defense, outcome, shards), outcome.public
    network, task = stripper.expanded.plain, task_of(public)
    first, second = (strip(item, stripper.r(item), stripper.expanded) for item in got(stripper, 0))
    name = f"{stripper.expanded.wiring.weights[0].name}.weight"

    def gradient(model: Parameters, batch: LabelledImages) -> Tensor:
        return task.gradient(model, batch.images, batch.labels)[0][name].flatten(1)

    form = canonical_form(first, network)
    rows = form[name].flatten(1)
    norms = torch.full((len(rows),), 1 / 3, dtype=torch.float64).sqrt()
    found = others_gradient(
        update_between(first, second, network)[name],
        rows,
        gradient(form, batches[client_name(ATTACKER)]),
        public.training.per_round,
        public.training.learning_rate,
        norms,
    )
    exact = canonical_form(truth(outcome, 0)[0], network)
    parts = [gradient(exact, batch) for client, batch in batches.items() if client != client_name(ATTACKER)]
    mean = torch.stack(parts).mean(0)
    return cosine(found, mean - (mean * rows).sum(1, keepdim=True) * rows)


def cosine(one: Tensor, other: Tensor) -> float:
    """The cosine of two tensors as vectors."""
    return float(torch.nn.functional.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0))


if __name__ == "__main__":
    main()
