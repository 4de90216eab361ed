"""What an attack is asked and handed. Part of every answer's key: another question is another answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from leakboard.attacks.base import ExtractionTask, Knowledge, KnownMembership, MembershipTask, ReconstructionTask
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import ImagePool
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import Splits
from leakboard.federation.settings import Moment, ObservedRounds, client_name
from leakboard.federation.view import Threat, parse_threat
from leakboard.leaderboard.cells.answer import AttackTask
from leakboard.leaderboard.cells.attack_process import Question, opened_files
from leakboard.leaderboard.cells.audit_game import open_game
from leakboard.leaderboard.cells.train import load_batch, load_summary, open_view
from leakboard.leaderboard.planning.jobs import Job, probe_size
from leakboard.leaderboard.planning.public_settings import splits_of

#: share of a cell's time limit after which an attack is asked for the best answer it has; scoring needs the rest
PATIENCE = 0.8


def make_question(job: Job) -> Question:
    """What the attack is handed. The pool lives only in this function: the attack's process never has it."""
    assert job.cell is not None
    load_pool(job.make_dataset())  # once unwatched: a first load also opens what libraries read when they are imported
    with opened_files() as data_files:
        pool = load_pool(job.make_dataset())
    splits = splits_of(job, pool)
    threat = parse_threat(job.cell.threat, len(splits.shards))
    shards = {client_name(i): pool.take(s) for i, s in enumerate(splits.shards) if client_name(i) in threat.parties}
    observe = ObservedRounds.of_record(job.training.observe)
    # the smallest size draws what it drew when there were no others
    size = probe_size(job)
    names: list[str | int | None] = [job.cell.attack.label, job.cell.threat, job.cell.moment]
    attack_seed = derive_seed(
        job.private_seed, "attack", *names, *(() if size == observe.sizes[0] else ("batch", size))
    )
    knowledge = Knowledge(
        view=open_view(job.training_folder, threat, shards, observe.probes(size)),
        defense=job.make_defense(),
        auxiliary=pool.take(splits.auxiliary),
        seed=attack_seed,
        device=job.device,
        deadline=time.monotonic() + PATIENCE * job.time_limit,
    )
    game = open_game(job, pool, splits) if job.cell.goal == "audit" else None
    task = game.task(()) if game is not None else _task(job, pool, splits, threat)
    if isinstance(task, ReconstructionTask):
        # how many images each problem asks for follows from its gradient; more would let the truth pick the best
        task = replace(task, sizes=tuple(problem.gradient.records for problem in task.problems(knowledge)))
    forbidden = (*sorted(data_files), _run_folder(job))
    portions = game.portions() if game is not None else ()
    return Question(job.plugin_files, job.make_attack(), knowledge, task, forbidden, portions)


def _run_folder(job: Job) -> str:
    return str(job.training_folder.parent.parent.resolve())


def _task(job: Job, pool: ImagePool, splits: Splits, threat: Threat) -> AttackTask:
    assert job.cell is not None
    if job.cell.goal == "membership":
        asked = _observed_round(job)[1] if job.cell.about == "batch" else None
        indices, _ = candidates(job, splits, threat)
        told, members = told_records(job, splits, threat)
        known = KnownMembership(pool.take(told), members) if len(told) else None
        return MembershipTask(pool.take(indices), known, asked)
    moment, round_index = _observed_round(job)
    if job.cell.goal == "extraction":
        return ExtractionTask(moment, round_index)
    observe, size = ObservedRounds.of_record(job.training.observe), probe_size(job)
    known_labels = tuple(torch.split(pool.labels[targets(job, splits)], size)) if job.cell.known_labels else None
    numbers = observe.probes(size)
    return ReconstructionTask(
        moment,
        round_index,
        len(numbers),
        size,
        known_labels,
        (size,) * len(numbers),
        first=numbers.start,
    )


def targets(job: Job, splits: Splits) -> Tensor:
    """Dataset indices of the victim's records that a reconstruction is after, batch by batch."""
    places = ObservedRounds.of_record(job.training.observe).records(probe_size(job))
    return splits.shards[0][places.start : places.stop]


def _observed_round(job: Job) -> tuple[Moment, int]:
    """The observed round that a cell is about: its name and its number."""
    assert job.cell is not None
    assert job.cell.moment is not None
    observed = load_summary(job.training_folder).observed
    if job.cell.moment not in observed:
        raise Unsupported(f"the run is so short that its {job.cell.moment} round is another observed one")
    return cast(Moment, job.cell.moment), observed[job.cell.moment]


def candidates(job: Job, splits: Splits, threat: Threat) -> tuple[Tensor, Tensor]:
    """Dataset indices (N,) and the truth (N,) of the evaluated records, shuffled.

    Members that no attacker holds (`about: batch`: the victim's batch of the observed round, or the share of it that
    the cell grants), and all non-members, without those that the cell tells the attacker.
    """
    indices, truth, told = _askable(job, splits, threat)
    return indices[~told], truth[~told]


def told_records(job: Job, splits: Splits, threat: Threat) -> tuple[Tensor, Tensor]:
    """Dataset indices and the truth of the records that the cell tells the attacker; none where it grants none."""
    indices, truth, told = _askable(job, splits, threat)
    return indices[told], truth[told]


def _askable(job: Job, splits: Splits, threat: Threat) -> tuple[Tensor, Tensor, Tensor]:
    """All records that could be asked about, shuffled: indices, truth, and which are told (the same share of both)."""
    assert job.cell is not None
    if job.cell.about == "batch":
        members = _pooled(job, _batch(job, splits))
        question = ["batch", job.cell.moment]
    else:
        members = torch.cat([s for i, s in enumerate(splits.shards) if client_name(i) not in threat.parties])
        question = []
    indices = torch.cat([members, splits.non_members])
    truth = torch.arange(len(indices)) < len(members)
    seed = derive_seed(job.private_seed, "candidates", job.training.dataset.label, *question)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(indices), generator=generator)
    indices, truth = indices[order], truth[order]
    told = torch.zeros_like(truth)
    for kind in (truth, ~truth):
        positions = kind.nonzero().squeeze(1)
        told[positions[: round(job.cell.known_members * len(positions))]] = True
    return indices, truth, told


def _pooled(job: Job, batch: Tensor) -> Tensor:
    """The members of a batch that are among the candidates: `pool_share` of them, at least one.

    Drawn from a seed that no attack knows; a smaller share is a part of a larger one, so that shares differ in nothing
    else. The rest of the batch is neither asked about nor told.
    """
    assert job.cell is not None
    if job.cell.pool_share == 1:
        return batch
    seed = derive_seed(job.private_seed, "pool", job.training.dataset.label, job.cell.moment)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    return batch[order[: max(1, round(job.cell.pool_share * len(batch)))]]


def _batch(job: Job, splits: Splits) -> Tensor:
    """Dataset indices of the records that the victim trained on in the observed round."""
    positions = load_batch(job.training_folder, _observed_round(job)[1])
    if positions is None:
        raise Unsupported("the victim dropped out of that round")
    return splits.shards[0][positions]
