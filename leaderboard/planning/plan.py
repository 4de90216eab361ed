"""From a suite to jobs: every training once, every cell once, each with its key."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from leakboard.attacks.base import Attack
from leakboard.core import registry
from leakboard.core.errors import Problems, Unsupported, UserError, unknown_name
from leakboard.core.plugins import Plugin
from leakboard.core.sources import source_digests
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.loading import load_pool
from leakboard.defenses.base import check_local_steps
from leakboard.federation.models.base import Model
from leakboard.federation.models.module import Module
from leakboard.federation.settings import ObservedRounds, Public, Training
from leakboard.federation.task import task_of
from leakboard.federation.view import ACTIVE
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.planning.jobs import CHECKPOINT_SECONDS, Job, Locations
from leakboard.leaderboard.planning.public_settings import public_of, splits_of
from leakboard.leaderboard.records.known import known_goal
from leakboard.leaderboard.records.provenance import versions
from leakboard.leaderboard.records.record import SCHEMA_VERSION, CellSpec, PluginSpec, TrainingSpec, key_of
from leakboard.suites.schema import AttackEntry, DefenseEntry, Entry, Suite, is_about_rounds

#: weights of the largest network that may be trained: 1 GiB of floats, of which every party keeps several copies
MOST_WEIGHTS = 2**28


@dataclass(frozen=True)
class Options:
    """The options that the command line adds to a suite."""

    run: Path
    device: str = "cpu"
    plugin_files: tuple[str, ...] = ()
    lpips_weights: str = ""
    download: bool = False
    fresh_keys: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Plan:
    """All jobs of a run: the trainings, and the cells that depend on them."""

    suite: Suite
    trainings: tuple[Job, ...]
    cells: tuple[Job, ...]
    publics: dict[str, Public]


def select(
    suite: Suite,
    defenses: Sequence[str],
    attacks: Sequence[str],
    seeds: Sequence[int],
    plugin_files: Sequence[str] = (),
) -> Suite:
    """The suite restricted to the selection. The control and the prior stay, because nothing is ranked without them.

    A name that is not in the suite but is a known plugin is added with its default parameters;
    so are the plugins of `--plugin` files.
    """
    extra = [entry for file in plugin_files for entry in registry.load_file(file)]
    rows = list(suite.defenses)
    columns = list(suite.attacks)
    defenses = [registry.title_of("defense", name, [row.title for row in rows]) for name in defenses]
    attacks = [registry.title_of("attack", name, [column.title for column in columns]) for name in attacks]
    problems = Problems()
    for name in [*defenses, *(e["name"] for e in extra if e["kind"] == "defense")]:
        with problems.collected():
            if name in [row.title for row in rows]:
                continue
            _known("defense", name, [row.title for row in rows])
            rows.append(DefenseEntry(name=name))
    for name in [*attacks, *(e["name"] for e in extra if e["kind"] == "attack")]:
        with problems.collected():
            if name in [column.title for column in columns]:
                continue
            entry = _known("attack", name, [column.title for column in columns])
            # the first threat of an attack is the one for which it was made
            columns.append(AttackEntry(name=name, threats=(entry["threats"][0],), about=entry.get("about", "training")))
    problems.refuse()
    if defenses:
        rows = [row for row in rows if row.title in (*defenses, suite.control)]
    if attacks:
        asked = [column for column in columns if column.title in attacks]
        # the prior stays, like the control: a reconstruction means nothing without the guess that needs no attack
        priors = {known_goal(registry.find("attack", column.name)["goal"]).prior for column in asked}
        columns = [c for c in columns if c in asked or c.name in priors]
    rows = _with_seeds(rows, seeds, (*defenses, suite.control)) if seeds else rows
    update = {"defenses": tuple(rows), "attacks": tuple(columns), "seeds": tuple(seeds) or suite.seeds}
    return Suite.parse(suite.model_copy(update=update).model_dump(), f"The suite {suite.name} with these options")


def _with_seeds(rows: Sequence[DefenseEntry], seeds: Sequence[int], named: Sequence[str]) -> list[DefenseEntry]:
    """The rows that have some of these seeds. A row that is needed by name must have one."""
    kept = []
    for row in rows:
        own = None if row.seeds is None else tuple(seed for seed in row.seeds if seed in seeds)
        if own != ():
            kept.append(row.model_copy(update={"seeds": own}))
        elif row.title in named:
            raise UserError(f"The defense '{row.title}' has only the seeds {list(row.seeds or ())} in this suite.")
    return kept


def _known(kind: str, name: str, titles: list[str]) -> dict[str, Any]:
    known = registry.entries(kind)
    if name not in known:
        raise unknown_name(kind, name, [*titles, *(n for n in known if n not in titles)])
    return known[name]


def make_plan(suite: Suite, options: Options) -> Plan:
    """All jobs of a suite. Loads the data and checks everything that can be checked before work starts."""
    trainings: list[Job] = []
    cells: list[Job] = []
    publics: dict[str, Public] = {}
    problems = Problems()
    for data_entry in suite.datasets:
        dataset = _dataset(data_entry, options.download)
        pool = load_pool(dataset)
        digest, structure = pool.digest(), pool.structure()
        for defense in suite.defenses:
            for seed in suite.seeds_of(defense):
                with problems.collected():
                    job = _training_job(suite, data_entry, dataset, (digest, structure), defense, seed, options)
                    publics[job.training_key] = _check(job, pool)
                    trainings.append(job)
                    deviating = _deviating(suite, job, publics[job.training_key])
                    if deviating is not None:
                        publics[deviating.training_key] = _check(deviating, pool)
                        trainings.append(deviating)
                    cells += _cells(suite, job, deviating)
    problems.refuse()
    return Plan(suite, tuple(trainings), tuple(cells), publics)


def _dataset(entry: Entry, download: bool) -> Dataset:
    dataset = cast(Dataset, registry.create("dataset", entry.name, entry.params))
    if download and "download" in dataset.location_fields:
        dataset = dataset.model_copy(update={"download": True})
    return dataset


def _model(entry: Entry) -> Model:
    model = cast(Model, registry.create("model", entry.name, entry.params))
    return model.pinned() if isinstance(model, Module) else model


def _spec(entry: Entry, plugin: Plugin) -> PluginSpec:
    return PluginSpec(label=entry.title, name=plugin.name, parameters=plugin.identity())


def _file(kind: str, name: str) -> str:
    return str(registry.find(kind, name)["file"])


def _training_job(
    suite: Suite,
    data: Entry,
    dataset: Dataset,
    digests: tuple[str, str],
    defense: DefenseEntry,
    seed: int,
    options: Options,
) -> Job:
    digest, structure = digests
    model_entry = defense.model or suite.model
    model = _model(model_entry)
    given = {**suite.training.model_dump(mode="json"), **defense.training}
    training = Training.parse(given, f"training of the defense '{defense.title}'")
    spec = TrainingSpec(
        dataset=_spec(data, dataset),
        model=_spec(model_entry, model),
        defense=_spec(defense, registry.create("defense", defense.name, defense.params)),
        training=training.model_dump(mode="json"),
        observe=suite.observe.model_dump(mode="json"),
        seed=seed,
        keys="fresh" if options.fresh_keys else "seeded",
    )
    roots = ["leakboard.leaderboard.cells.train", _file("dataset", dataset.name), _file("model", model.name)]
    ingredients = {
        "kind": "training",
        "schema": SCHEMA_VERSION,
        "modules": source_digests([*roots, _file("defense", spec.defense.name)]),
        "versions": versions(),
        "device": options.device,
        "spec": spec.model_dump(mode="json"),
        "data": digest,
        "structure": structure,
    }
    return Job(
        run=str(options.run),
        training=spec,
        training_key=key_of(ingredients),
        data_digest=digest,
        locations=Locations(
            dataset=dataset.location(),
            model=model.location(),
            lpips_weights=options.lpips_weights,
            download=options.download,
        ),
        ingredients=ingredients,
        plugin_files=options.plugin_files,
        device=options.device,
        time_limit=suite.time_limit,
        checkpoint_seconds=options.checkpoint_seconds,
    )


def _deviating(suite: Suite, training: Job, public: Public) -> Job | None:
    """The same training with a deviating server, if an attack needs it and the defense supports it on this network."""
    asked = any(_is_active(_attack(entry), threat) for entry in suite.attacks for threat in entry.threats)
    strategy = training.make_defense().deviate() if asked else None
    if strategy is None or not strategy.deviates_on(public):
        return None
    spec = training.training.model_copy(update={"active": True})
    ingredients = {**training.ingredients, "spec": spec.model_dump(mode="json")}
    update = {"training": spec, "ingredients": ingredients, "training_key": key_of(ingredients)}
    return training.model_copy(update=update)


def _check(job: Job, pool: ImagePool) -> Public:
    """Fail now, in one sentence, instead of later: batches, targets, models that do not fit the images."""
    public = public_of(job, pool, splits_of(job, pool))
    ObservedRounds.of_record(job.training.observe).check_targets(public.shard_sizes[0])
    _check_size(job, public)
    task_of(public)
    try:
        job.make_defense().check(public)
        check_local_steps(job.make_defense(), public)
    except Unsupported as reason:
        raise UserError(f"The defense '{job.training.defense.label}' cannot run here: {reason}.") from None
    return public


def _check_size(job: Job, public: Public) -> None:
    """Refuse a network that does not fit into memory, before it is allocated; a user's own class is built anyway."""
    model, what = job.make_model(), f"The model '{job.training.model.label}'"
    if isinstance(model, Module):
        return
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about layers without weights
            size = sum(value.numel() for value in model.build(public.shape, public.classes).parameters())
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # sizes beyond torch's range
        raise UserError(f"{what} cannot be built for images {public.shape}: {type(error).__name__}: {error}.") from None
    if not 0 < size <= MOST_WEIGHTS:
        raise UserError(f"{what} must have from 1 to {MOST_WEIGHTS} weights; with these parameters it has {size}.")


def _attack(entry: AttackEntry) -> Attack:
    return cast(Attack, registry.create("attack", entry.name, entry.params))


def _is_active(attack: Attack, threat: str) -> bool:
    """Whether a cell needs a training with a deviating server."""
    return threat == ACTIVE and attack.allows(threat)


def _cells(suite: Suite, honest: Job, deviating: Job | None) -> list[Job]:
    """The cells on one training: attacks on observed rounds have one cell per round.

    Reconstructions have one cell per observed round and batch size. Cells of an active server depend on the training in
    which it deviates, and no other cells do. If there is none, they depend on the honest training and report at run
    time that they are not supported.
    """
    jobs = []
    for entry in suite.attacks:
        attack = _attack(entry)
        for threat in entry.threats:
            suite.observe.check_threat(threat)
            training = deviating if deviating is not None and _is_active(attack, threat) else honest
            moments = suite.observe.rounds if is_about_rounds(attack.goal, entry) else (None,)
            for moment, size in product(moments, _sizes(suite, attack)):
                cell = CellSpec(
                    training=training.training,
                    attack=_spec(entry, attack),
                    goal=attack.goal,
                    threat=threat,
                    moment=moment,
                    known_labels=entry.known_labels,
                    known_members=entry.known_members,
                    about=entry.about,
                    pool_share=entry.pool_share,
                    decoys=suite.decoys,
                    adaptive=attack.adaptive,
                    probe_batch=size,
                )
                jobs.append(cell_job(training, cell))
    return jobs


def _sizes(suite: Suite, attack: Attack) -> tuple[int | None, ...]:
    """The batch sizes for which an attack has separate cells; None: there is only one."""
    several = known_goal(attack.goal).per_batch_size and len(suite.observe.sizes) > 1
    return suite.observe.sizes if several else (None,)


def cell_job(training: Job, cell: CellSpec) -> Job:
    """A cell's job with its two keys: the answer's (attack and view) and the record's (answer and metrics)."""
    attack = cast(Attack, registry.create("attack", cell.attack.name, cell.attack.parameters))
    files = [_file("attack", name) for name in (attack.name, *attack.runs())]
    goal = cast(type[Goal], registry.load("goal", cell.goal))
    answer = {
        "kind": "answer",
        "schema": SCHEMA_VERSION,
        "training": training.training_key,
        "modules": source_digests(["leakboard.leaderboard.cells.question", *goal.question_files(), *files]),
        "versions": versions(),
        "cell": cell.model_dump(mode="json", exclude={"training", "decoys"}),
    }
    metrics = [e["file"] for e in registry.entries("metric").values() if e["goal"] == cell.goal]
    ingredients = {
        "kind": "cell",
        "schema": SCHEMA_VERSION,
        "answer": answer,
        "training": training.ingredients,
        "metrics": source_digests(["leakboard.leaderboard.cells.run_cell", _file("goal", cell.goal), *metrics]),
        "decoys": cell.decoys,
        "lpips": bool(training.locations.lpips_weights or training.locations.download),
    }
    update = {"cell": cell, "answer_key": key_of(answer), "key": key_of(ingredients), "ingredients": ingredients}
    return training.model_copy(update=update)
