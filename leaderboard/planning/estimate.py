"""How long a plan will take: one gradient is timed, the rest is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from leakboard.attacks.base import GradientMatching
from leakboard.federation.settings import ObservedRounds, Public
from leakboard.federation.task import task_of
from leakboard.leaderboard.planning.jobs import Job, probe_size
from leakboard.leaderboard.planning.plan import Plan
from leakboard.leaderboard.planning.skips import sure_skip

#: seconds that a cell takes besides its attack: for the process, the data, the scores (docs/performance.md)
OVERHEAD = 0.5


def seconds_per_gradient(public: Public, batch: int) -> float:
    """CPU seconds of one gradient of a batch on this machine, with one thread, the best of three."""
    task = task_of(public)
    model = task.initial(0)
    return _fastest(lambda images, labels: task.gradient(model, images, labels), public, batch)


def seconds_per_match(public: Public, batch: int) -> float:
    """A third of an iteration of gradient matching, which `work` counts as three gradients.

    Through a gradient the way back costs more in some networks than in others, such as those with batch norm.
    """
    task = task_of(public)
    model = task.initial(0)
    weights = [model[name].requires_grad_() for name in task.parameter_names]

    def iteration(images: Tensor, labels: Tensor) -> None:
        images.requires_grad_()
        loss = task.loss(task.logits(model, images, train=True), labels)
        cost = torch.stack([g.square().sum() for g in torch.autograd.grad(loss, weights, create_graph=True)]).sum()
        torch.autograd.grad(cost, images)

    return _fastest(iteration, public, batch) / 3


def _fastest(work: Callable[[Tensor, Tensor], object], public: Public, batch: int) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    try:
        for _ in range(3):
            images, labels = torch.rand(batch, *public.shape), torch.zeros(batch, dtype=torch.int64)
            started = time.process_time()
            work(images, labels)
            times.append(time.process_time() - started)
    finally:
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
    timed: dict[tuple[str, int, bool], float] = {}

    def gradient(public: Public, batch: int, matched: bool = False) -> float:
        network = public.model_dump_json(include={"model", "model_parameters", "shape", "classes"})
        if (network, batch, matched) not in timed:
            seconds = seconds_per_match if matched else seconds_per_gradient
            timed[network, batch, matched] = seconds(public, batch)
        return timed[network, batch, matched]

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
            matched, training = isinstance(job.make_attack(), GradientMatching), found[job.training_key]
            probe = gradient(plan.publics[job.training_key], probe_size(job), matched)
            found[job.key] = gradients * probe + trainings * training + OVERHEAD
    return found
