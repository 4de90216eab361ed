"""How long a plan will take: one gradient is timed, the rest is counted."""

from __future__ import annotations

import time
from typing import cast

import torch

from attacks.base import Attack
from core import registry
from federation.settings import Public, Watch
from federation.task import task_of
from leaderboard.plan import Plan

#: seconds a cell takes besides its attack: a process, the data, the scores
OVERHEAD = 2.0


def seconds_per_gradient(public: Public, batch: int) -> float:
    """Wall seconds of one gradient of a batch on this machine, one thread, the best of three."""
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


def estimate(plan: Plan) -> dict[str, float]:
    """Seconds by job key; the defense's own work (encryption and the like) is not in it."""
    found: dict[str, float] = {}
    for job in plan.trainings:
        public = plan.publics[job.training_key]
        watch = Watch.model_validate(job.training.observe)
        single = seconds_per_gradient(public, watch.probe_batch)
        batch = seconds_per_gradient(public, public.training.batch_size)
        probes = len(watch.rounds) * watch.targets // watch.probe_batch
        rounds = public.total_rounds * batch + probes * single
        training = public.training.per_round * rounds + OVERHEAD
        found[job.training_key] = training
        for cell in plan.cells:
            if cell.training_key == job.training_key and cell.cell is not None:
                attack = cast(Attack, registry.create("attack", cell.cell.attack.name, cell.cell.attack.parameters))
                gradients, trainings = attack.work(watch.targets // watch.probe_batch)
                found[cell.key] = gradients * single + trainings * training + OVERHEAD
    return found
