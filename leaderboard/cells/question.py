"""What an attack is handed. Part of every answer's key: another question is another answer."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import cast

from leakboard.attacks.base import Knowledge
from leakboard.core import registry
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import ImagePool
from leakboard.datasets.loading import load_pool
from leakboard.federation.settings import client_name
from leakboard.leaderboard.cells.attack_process import Question, opened_files
from leakboard.leaderboard.cells.train import load_batch, load_model, load_public, load_summary, open_view
from leakboard.leaderboard.goals.question import CellFacts, GoalQuestion
from leakboard.leaderboard.planning.jobs import Job, probe_size
from leakboard.leaderboard.planning.public_settings import splits_of

#: share of a cell's time limit after which an attack is asked for the best answer it has; scoring needs the rest
PATIENCE = 0.8


def make_question(job: Job) -> Question:
    """What the attack is handed. The pool stays in this process: the attack's process never has it."""
    _forget_pool()  # loading is what shows the files
    with opened_files() as data_files:
        pool = pool_of(job)
    facts = facts_of(job, pool)
    goal = cast(GoalQuestion, registry.create("goal", facts.cell.goal))
    knowledge = _knowledge(job, facts)
    asked = goal.ask(facts, knowledge)
    forbidden = (*sorted(data_files), *_folders(job))
    return Question(job.plugin_files, goal, job.make_attack(), knowledge, asked.task, forbidden, asked.portions)


_last_pool: tuple[tuple[str, str], ImagePool] | None = None


def pool_of(job: Job) -> ImagePool:
    """The data of a job, loaded once for question and score of a cell; only the last one is kept."""
    global _last_pool
    key = job.data_digest, repr(job.make_dataset())
    if _last_pool is None or _last_pool[0] != key:
        _last_pool = key, load_pool(job.make_dataset())
    return _last_pool[1]


def _forget_pool() -> None:
    global _last_pool
    _last_pool = None


def facts_of(job: Job, pool: ImagePool) -> CellFacts:
    """All that the harness knows of a cell: what its goal makes question and truth of."""
    assert job.cell is not None
    folder = job.training_folder
    return CellFacts(
        cell=job.cell,
        pool=pool,
        splits=splits_of(job, pool),
        private_seed=job.private_seed,
        batch_size=probe_size(job),
        make_attack=job.make_attack,
        make_defense=job.make_defense,
        load_public=partial(load_public, folder),
        load_summary=partial(load_summary, folder),
        load_model=partial(load_model, folder),
        load_batch=partial(load_batch, folder),
    )


def _knowledge(job: Job, facts: CellFacts) -> Knowledge:
    """The view with what else an attacker has."""
    threat, size, cell = facts.threat, facts.batch_size, facts.cell
    held = ((client_name(i), shard) for i, shard in enumerate(facts.splits.shards))
    shards = {name: facts.pool.take(shard) for name, shard in held if name in threat.parties}
    # the smallest size draws what it drew when there were no others
    sized = () if size == facts.observe.sizes[0] else ("batch", size)
    seed = derive_seed(job.private_seed, "attack", cell.attack.label, cell.threat, cell.moment, *sized)
    return Knowledge(
        view=open_view(job.training_folder, threat, shards, facts.observe.probes(size)),
        defense=job.make_defense(),
        auxiliary=facts.pool.take(facts.splits.auxiliary),
        seed=seed,
        device=job.device,
        deadline=time.monotonic() + PATIENCE * job.time_limit,
    )


def _folders(job: Job) -> list[str]:
    """The folder of the run, and that of the board whose training it is: a snapshot holds the keys of all parties."""
    found = [job.training_folder.parent.parent, *([Path(job.published)] if job.published else [])]
    return [str(folder.resolve()) for folder in found]
