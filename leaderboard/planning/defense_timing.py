"""What a round costs under a defense on this machine: a few clients are run for one round, for `run --dry-run`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch

from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public, client_name
from leakboard.leaderboard.planning.estimate import OVERHEAD
from leakboard.leaderboard.planning.plan import Plan

#: at most this many clients are tried, for at most this many seconds
CLIENTS, PATIENCE = 5, 20.0


def with_defenses(plan: Plan, seconds: dict[str, float]) -> dict[str, float]:
    """The estimates with the work of each defense (clipping, noise, encryption) in its trainings.

    A training runs the protocol once per round and once per probe, each time about as long as a round that was tried.
    Where a round cannot be tried, or takes too long, the estimate stays: the gradients alone.
    """
    found, tried = dict(seconds), dict[str, float | None]()
    for job in plan.trainings:
        public = plan.publics[job.training_key]
        kind = public.model_dump_json(exclude={"shard_sizes", "total_rounds"})
        if kind not in tried:
            tried[kind] = None
            with suppress(Exception):  # a plugin's own code, or the end of our patience
                tried[kind] = round_seconds(job.make_defense(), public)
        cost = tried[kind]
        if cost is not None:
            observe = ObservedRounds.of_record(job.training.observe)
            probes = len(observe.rounds) * observe.targets * len(observe.sizes)
            found[job.training_key] = OVERHEAD + (public.total_rounds + probes) * cost
    return found


def round_seconds(defense: Defense, public: Public) -> float:
    """CPU seconds of one round with one thread, without its set-up; the second of two tries, when all is loaded."""
    clients, size = min(public.training.per_round, CLIENTS), public.training.batch_size
    whole = {"dropouts": (), "dropout": 0.0, "late": 0.0}
    settings = {"clients": clients, "participants": None, "rounds": 1, "epochs": None, **whole}
    small = public.model_copy(
        update={
            "training": public.training.model_copy(update=settings),
            "total_rounds": 1,
            "shard_sizes": (size,) * clients,
        }
    )
    images = LabelledImages(torch.rand(size, *public.shape), torch.zeros(size, dtype=torch.int64))
    shards = {client_name(index): images for index in range(clients)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _patience(PATIENCE):
            for _ in range(2):
                outcome = Federation(defense, small, shards, ObservedRounds(rounds=()), 0).run()
    finally:
        torch.set_num_threads(threads)
    spent = {name: value for name, value in outcome.cpu_seconds.items() if name != "Key_Gen"}
    return sum(spent.values()) * public.training.per_round / clients


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block after this time; only the main thread can be interrupted so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
