"""The clip bound and the learning rate of every system of a suite, chosen by accuracy alone before any attack runs.

    .venv/bin/python benchmarks/tuning.py --suite quick
    .venv/bin/python benchmarks/tuning.py --suite contenders --further
    .venv/bin/python benchmarks/tuning.py --suite contenders --report --row ddp

Every row of the suite is trained once at each point of the suite's own grid (`tuning` in its file: clip bounds x
learning rates, the same for all), at a seed that the suite does not report. Rows without a clip bound have only the
learning rates. Accuracy is that of the last model on the training file's non-members and auxiliary records. Images of
an official test set are never used. Digits have no such set: there, these records may include test images that another
seed reports, equally for every row.

The result is printed as YAML for the suite. Each row of the suite must have its best point
(`tests/suites/test_tuning.py` compares them). Encrypted systems train on their rehearsal: the same integers without
ciphertexts. Finished trainings are kept in runs/tuning/<suite>.jsonl and not repeated. Remove the file when a change of
the code changes the training.

`--further` trains the grids of `tuning.further` instead: more parameters of single rows, at their best point of the
common grid, which has these parameters at their defaults.

`--batch N` makes the grid cheaper: every training takes N records per client and round instead of the suite's batch,
in as many rounds and with the noise of the suite's batch (`thinned`). The noise is the same to 0.01 %, or the row is
refused. Only the mean that it is added to comes from fewer records. The suite itself keeps its batch.

`--report` trains the rows as they stand in the suite at its first reported seed, without any attack, and prints their
accuracy on the test records. Nothing is chosen from that. The records are those of the suite's run; initial weights and
keys are not, because a run derives its private seed from the data too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

if not __package__:  # run as a script
    sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch

from benchmarks._federation import public_settings
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.memory import keep_freed_memory
from leakboard.core.plugins import Plugin
from leakboard.core.seeds import digest_of
from leakboard.datasets.base import Dataset
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import make_splits
from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.correlated_rounds import CorrelatedRounds
from leakboard.defenses.noise.budget import Budget
from leakboard.defenses.noise.calibration import gaussian_epsilon
from leakboard.federation.models.base import Model
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import Public, Training, client_name
from leakboard.federation.task import task_of
from leakboard.metrics.accuracy import accuracy
from leakboard.suites.schema import DefenseEntry, Suite, Tuning, load_suite


@dataclass(frozen=True)
class Point:
    """One training of the grid: a row of the suite with this clip bound and this learning rate."""

    suite: str
    row: str
    clip: float | None
    learning_rate: float
    settings: str = ""
    batch: int | None = None
    further: tuple[tuple[str, float], ...] = ()


def untuned(suite: Suite, row: DefenseEntry) -> dict[str, Any]:
    """The row's parameters without those that a grid sets."""
    assert suite.tuning is not None
    tuned = {"clip", *(suite.tuning.further[row.title].params if row.title in suite.tuning.further else ())}
    return {name: value for name, value in row.params.items() if name not in tuned}


def settings_of(suite: Suite, row: DefenseEntry) -> str:
    """A digest of all other settings of the training: other settings are another point."""
    own = row.model_dump(mode="json", exclude={"label", "seeds"})
    own["params"] = untuned(suite, row)
    own["training"] = {**suite.training.model_dump(mode="json"), **row.training, "learning_rate": None}
    return digest_of([own, suite.model.model_dump(mode="json"), suite.datasets[0].model_dump(mode="json")])[:12]


def has_clip(plugin: Plugin) -> bool:
    """Whether the defense clips with these parameters: then the bound is tuned."""
    return plugin.parameters().get("clip") is not None


def points(
    name: str, suite: Suite, tuning: Tuning, batch: int | None = None, rows: Sequence[str] = ()
) -> Iterator[Point]:
    """All trainings of the grid, or those of some rows. A row that is `same_as` another is not trained."""
    for row in suite.defenses:
        if row.title in tuning.same_as or (rows and row.title not in rows):
            continue
        clips = tuning.clip if has_clip(registry.create("defense", row.name, row.params)) else (None,)
        for rate in tuning.learning_rate:
            for clip in clips:
                yield Point(name, row.title, clip, rate, settings_of(suite, row), batch)


def further_points(name: str, suite: Suite, tuning: Tuning) -> Iterator[Point]:
    """All trainings of the grids of single rows."""
    common = tuning.model_copy(update={"further": {}})
    for row in (row for row in suite.defenses if row.title in tuning.further):
        clip, rate = common.best(row.title)
        for values in tuning.further[row.title].combinations():
            own = values.pop("learning_rate", rate)
            yield Point(name, row.title, clip, own, settings_of(suite, row), further=tuple(values.items()))


def validation_accuracy(point: Point) -> dict[str, Any]:
    """Train at one point; returns the accuracy in percent on records that are neither trained on nor reported."""
    started = time.process_time()
    suite = load_suite(point.suite)
    assert suite.tuning is not None
    row = next(row for row in suite.defenses if row.title == point.row)
    changed = {**row.training, "learning_rate": point.learning_rate}
    clip = {} if point.clip is None else {"clip": point.clip}
    parameters = {**untuned(suite, row), **clip, **dict(point.further)}
    defense = cast(Defense, registry.create("defense", row.name, parameters))
    changed_row = row.model_copy(update={"training": changed})
    share = _accuracy(suite, changed_row, defense, suite.tuning.seed, batch=point.batch)
    return {**vars(point), "accuracy": round(100 * share, 2), "cpu_seconds": time.process_time() - started}


def reported_accuracy(suite: Suite, row: DefenseEntry) -> dict[str, Any]:
    """Train a row as the suite has it at the first reported seed; the accuracy in percent on the test records."""
    started = time.process_time()
    defense = cast(Defense, registry.create("defense", row.name, row.params))
    share = _accuracy(suite, row, defense, suite.seeds[0], of_test=True)
    return {"row": row.title, "accuracy": round(100 * share, 2), "cpu_seconds": time.process_time() - started}


def thinned(defense: Defense, public: Public, batch: int) -> tuple[Defense, Public]:
    """The defense and the settings that train on `batch` records per client and round with the noise of `public`'s.

    A record moves the mean of b records by S = 2B / b, and the noise is S / mu. So b' records have the noise of b with
    a mean shift of mu b / b'. As many rounds are trained as before, not as many epochs. Noise that is correlated over
    rounds keeps its band. Refused if the noise that the defense states (sigma_*, per round) is not the same.
    """
    training = public.training.model_copy(update={"batch_size": batch, "rounds": public.total_rounds, "epochs": None})
    fewer = public.model_copy(update={"training": training})
    if not isinstance(defense, Budget):
        return defense, fewer
    band = {"band": len(defense.coefficients(public))} if isinstance(defense, CorrelatedRounds) else {}
    before, mu = noise_of(defense, public), defense.round_mu(public) * public.training.batch_size / batch
    times = defense.compositions(fewer) if defense.epsilon_per == "run" else 1
    for _ in range(2):  # the sensitivity of correlated noise depends on the rounds of an epoch: known after one try
        update = {"epsilon": gaussian_epsilon(mu * math.sqrt(times), defense.delta), **band}
        changed = defense.model_copy(update=update)
        after = noise_of(changed, fewer)
        mu *= next((after[name] / value for name, value in before.items()), 1.0)
    if not before or not all(math.isclose(before[name], after[name], rel_tol=1e-4) for name in before):
        raise UserError(f"{defense.name} has other noise with {batch} records: {after}; with all: {before}.")
    return changed, fewer.model_copy(update={"parameters": changed.parameters()})


def noise_of(defense: Defense, public: Public) -> dict[str, float]:
    """The standard deviations that a defense states for a round."""
    claims = defense.claims(public).items()
    return {name: value for name, value in claims if name.startswith("sigma_") and isinstance(value, float)}


def _accuracy(
    suite: Suite, row: DefenseEntry, defense: Defense, seed: int, *, of_test: bool = False, batch: int | None = None
) -> float:
    """Train a row with this defense; the share of right answers on test records, or on held-out training records."""
    torch.set_num_threads(1)
    keep_freed_memory()
    entry, network = suite.datasets[0], row.model or suite.model
    dataset = cast(Dataset, registry.create("dataset", entry.name, entry.params))
    pool = load_pool(dataset)
    training = Training.parse({**suite.training.model_dump(mode="json"), **row.training}, "training")
    splits = make_splits(pool, seed=seed, clients=training.clients, partition=training.partition, alpha=training.alpha)
    model = cast(Model, registry.create("model", network.name, network.params))
    sizes = [len(shard) for shard in splits.shards]
    public = public_settings(dataset, pool, training, sizes, model, defense=defense)
    if batch is not None:
        defense, public = thinned(defense, public, batch)
    defense.check(public)
    shards = {client_name(index): pool.take(shard) for index, shard in enumerate(splits.shards)}
    outcome = Federation(defense.rehearsal(), public, shards, None, seed).run()
    held_out = pool.take(splits.test if of_test else torch.cat([splits.non_members, splits.auxiliary]))
    return accuracy(task_of(public).predict(outcome.model, held_out.images), held_out.labels)


def as_yaml(found: dict[Point, float], *, further: bool = False) -> str:
    """The block `accuracy` of a suite: by row, one list per learning rate with one value per clip bound.

    Of further grids it is the block `further` without its `params`: one list per row.
    """
    if further:
        rows = {row: [value for p, value in found.items() if p.row == row] for row in (p.row for p in found)}
        return "\n".join(["  further:", *(f"    {row}:\n      accuracy: {values}" for row, values in rows.items())])
    lines = ["  accuracy:"]
    for row in dict.fromkeys(point.row for point in found):
        lines.append(f"    {row}:")
        for rate in dict.fromkeys(p.learning_rate for p in found if p.row == row):
            own = [accuracy for p, accuracy in found.items() if (p.row, p.learning_rate) == (row, rate)]
            lines.append(f"      - {own}")
    return "\n".join(lines)


def _point(line: dict[str, Any]) -> Point:
    further = tuple((name, value) for name, value in line.get("further", ()))
    own = {name: line[name] for name in ("suite", "row", "clip", "learning_rate", "settings")}
    return Point(**own, batch=line.get("batch"), further=further)


def main() -> None:
    """Train the missing points, then print the block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, help="a suite with a `tuning` block")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each (default 2)")
    parser.add_argument("--report", action="store_true", help="accuracy of the rows as they are, on test records")
    parser.add_argument("--row", nargs="*", default=[], help="only these rows")
    parser.add_argument("--further", action="store_true", help="the grids of `tuning.further` instead")
    parser.add_argument("--batch", type=int, help="records per client and round, with the noise of the suite's batch")
    given = parser.parse_args()
    suite = load_suite(given.suite)
    if given.report:
        for row in suite.defenses:
            if not given.row or row.title in given.row:
                print(json.dumps(reported_accuracy(suite, row)), flush=True)
        return
    if suite.tuning is None:
        sys.exit(f"The suite {suite.name} has no block `tuning`: give it a seed, clip bounds and learning rates.")
    kept = registry.ROOT / "runs" / "tuning" / f"{suite.name}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    found = {_point(line): line["accuracy"] for line in lines}
    if given.further and given.batch:
        parser.error("--batch goes with the common grid only, not with --further")
    if given.further:
        asked = [p for p in further_points(given.suite, suite, suite.tuning) if not given.row or p.row in given.row]
    else:
        asked = list(points(given.suite, suite, suite.tuning, given.batch, given.row))
    with ProcessPoolExecutor(given.workers) as workers, kept.open("a") as file:
        for line in workers.map(validation_accuracy, [point for point in asked if point not in found]):
            print(json.dumps(line), file=file, flush=True)
            print(
                f"{line['row']}: clip {line['clip']}, learning rate {line['learning_rate']}"
                f"{''.join(f', {name} {value:g}' for name, value in line['further'])}: {line['accuracy']} %"
                f" ({line['cpu_seconds']:.0f} CPU s)",
                flush=True,
            )
            found[_point(line)] = line["accuracy"]
    print(as_yaml({point: found[point] for point in asked}, further=given.further))


if __name__ == "__main__":
    main()
