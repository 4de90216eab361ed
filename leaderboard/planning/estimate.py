"""How long a plan will take: one gradient is timed, the rest is counted."""

from __future__ import annotations

import time
from contextlib import suppress

import torch

from leakboard.federation.settings import ObservedRounds, Public
from leakboard.federation.task import task_of
from leakboard.leaderboard.planning.jobs import Job, probe_size
from leakboard.leaderboard.planning.plan import Plan
from leakboard.leaderboard.planning.skips import sure_skip

#: seconds that a cell takes besides its attack: for the process, the data, the scores (docs/performance.md)
OVERHEAD = 0.5


def seconds_per_gradient(public: Public, batch: int) -> float:
    """Wall seconds of one gradient of a batch on this machine, with one thread, the best of three."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    task = task_of(public)
    model = task.initial(0)
    images, labels = torch.rand(batch, *public.shape), torch.zeros(batch, dtype=torch.int64)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        task.gradient(model, images, labels)
        times.append(time.perf_counter() - started)
    torch.set_num_threads(threads)
    return min(times)


def attack_work(job: Job) -> tuple[float, float]:
    """What a cell's attack says of its own work: gradients of one probe, and whole trainings."""
    attack = job.make_attack()
    return attack.work(len(ObservedRounds.of_record(job.training.observe).probes(probe_size(job))))


def estimate(plan: Plan) -> dict[str, float]:
    """Seconds by job key; the defense's own work (such as encryption) is not included.

    Each network is timed once, so that equal trainings cost the same. An attack that cannot estimate its work has no
    entry.
    """
    found: dict[str, float] = {}
    timed: dict[tuple[str, int], float] = {}

    def gradient(public: Public, batch: int) -> float:
        network = public.model_dump_json(include={"model", "model_parameters", "shape", "classes"})
        if (network, batch) not in timed:
            timed[network, batch] = seconds_per_gradient(public, batch)
        return timed[network, batch]

    def update(public: Public, batch: int) -> float:
        steps = public.training.local_schedule(batch)
        return sum(gradient(public, step.stop - step.start) for step in steps)

    for job in plan.trainings:
        public = plan.publics[job.training_key]
        observe = ObservedRounds.of_record(job.training.observe)
        probes = len(observe.rounds) * observe.targets * sum(update(public, size) for size in observe.sizes)
        rounds = public.total_rounds * update(public, public.training.batch_size) + probes
        found[job.training_key] = public.training.per_round * rounds + OVERHEAD
    for job in plan.cells:
        if sure_skip(job):
            found[job.key] = 0.0
            continue
        with suppress(Exception):  # a plugin's own code
            gradients, trainings = attack_work(job)
            probe, training = gradient(plan.publics[job.training_key], probe_size(job)), found[job.training_key]
            found[job.key] = gradients * probe + trainings * training + OVERHEAD
    return found
