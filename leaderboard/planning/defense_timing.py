"""What a training costs under a defense on this machine: a few clients are run for two rounds, for `run --dry-run`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import torch

from leakboard.core.alarms import alarm
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public, client_name
from leakboard.leaderboard.planning.estimate import OVERHEAD, attack_work
from leakboard.leaderboard.planning.plan import Plan

#: at most this many clients are tried, for at most this many seconds of the clock: a running timer of CPU time makes
#: `process_time` coarse, which measures the rounds
CLIENTS, PATIENCE = 5, 20.0


@dataclass(frozen=True)
class Cost:
    """CPU seconds under a defense: of what is done once, of a round, and of one probe of every batch size together.

    Once are done the set-up and what the first round does more than others, such as a sample of real encryption.
    """

    once: float
    round: float
    probes: float

    def training(self, rounds: int, observe: ObservedRounds) -> float:
        """Seconds of a whole training, with its probes."""
        return self.once + rounds * self.round + len(observe.rounds) * observe.targets * self.probes


def with_defenses(plan: Plan, seconds: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """The estimates with the work of each defense (clipping, noise, encryption), and the defenses without it.

    Shadow models are trained with the work of a defense too, without what it does once. Where a defense cannot be
    tried, or takes too long, the estimates stay: the gradients alone.
    """
    found, tried, unknown = dict(seconds), dict[str, Cost | None](), dict[str, None]()
    longer: dict[str, float] = {}
    for job in plan.trainings:
        public, observe = plan.publics[job.training_key], ObservedRounds.of_record(job.training.observe)
        kind = public.model_dump_json(exclude={"shard_sizes", "total_rounds"})
        if kind not in tried:
            tried[kind] = None
            with suppress(Exception):  # a plugin's own code, or the end of our patience
                tried[kind] = try_rounds(job.make_defense(), public, observe)
        cost = tried[kind]
        if cost is None:
            unknown[job.training.defense.label] = None
            continue
        whole = OVERHEAD + cost.training(public.total_rounds, observe)
        longer[job.training_key] = whole - cost.once - seconds[job.training_key]
        found[job.training_key] = whole
    for job in plan.cells:
        if found.get(job.key):
            _, trainings = attack_work(job)
            found[job.key] += trainings * longer.get(job.training_key, 0.0)
    return found, list(unknown)


def try_rounds(defense: Defense, public: Public, observe: ObservedRounds) -> Cost:
    """The costs of a training with one thread, from two rounds and one probe of every batch size in the second."""
    clients, size = min(public.training.per_round, CLIENTS), public.training.batch_size
    probe = observe.model_copy(update={"rounds": ("last",), "targets": 1})
    shard = max(size, sum(probe.sizes))
    whole = {"dropouts": (), "dropout": 0.0, "late": 0.0}
    settings = {"clients": clients, "participants": None, "rounds": 2, "epochs": None, **whole}
    training = public.training.model_copy(update=settings)
    small = public.model_copy(update={"training": training, "total_rounds": 2, "shard_sizes": (shard,) * clients})
    images = LabelledImages(torch.rand(shard, *public.shape), torch.zeros(shard, dtype=torch.int64))
    federation = Federation(
        defense,
        small,
        {client_name(index): images for index in range(clients)},
        probe,
        0,
        at_boundary=lambda done, snapshot: marks.append(time.process_time()),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    marks = [time.process_time()]
    try:
        with alarm(PATIENCE, TimeoutError(f"longer than {PATIENCE:g} seconds"), cpu=False):
            federation.run()
    finally:
        torch.set_num_threads(threads)
    setup, first, second = (after - before for before, after in pairwise(marks))
    probes = sum(federation.clocks["probe"].cpu.values())
    later, share = max(0.0, second - probes), public.training.per_round / clients
    # the size of a sample of encryption does not depend on the number of clients
    return Cost(setup * share + max(0.0, first - later), later * share, probes * share)
