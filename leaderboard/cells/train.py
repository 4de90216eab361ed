"""One training: run the federation, measure it, store everything that views and scores need."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from leakboard.core.errors import UserError
from leakboard.core.files import whole_folder
from leakboard.datasets.base import ImagePool, LabelledImages
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import Splits
from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation, Outcome
from leakboard.federation.settings import ObservedRounds, Public, client_name
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Transcript
from leakboard.federation.view import Threat, View, limiter, seeable
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.public_settings import public_of, splits_of
from leakboard.leaderboard.records.record import TrainingSummary, hex_of
from leakboard.metrics.accuracy import accuracy, correct


def run_training(job: Job) -> None:
    """Train, evaluate and store; the folder appears only when its contents are complete."""
    started = time.perf_counter()
    pool = load_pool(job.make_dataset())
    if pool.digest() != job.data_digest:
        raise UserError("The data changed while the run was planned: run the command again.")
    splits = splits_of(job, pool)
    public = public_of(job, pool, splits)
    shards = {client_name(index): pool.take(shard) for index, shard in enumerate(splits.shards)}
    observe = ObservedRounds.of_record(job.training.observe)
    fresh = job.training.keys == "fresh"
    curve = _Curve(public, pool.take(splits.test))
    outcome = Federation(
        job.make_defense(),
        public,
        shards,
        observe,
        job.private_seed,
        fresh_keys=fresh,
        progress=_progress(),
        after_round=curve.note,
    ).run()
    summary = _summary(job, outcome, pool, splits, time.perf_counter() - started)
    summary = summary.model_copy(update={"accuracy_by_round": curve.found})
    with whole_folder(job.training_folder) as folder:
        Transcript(tuple(seeable(o) for o in outcome.transcript.observations)).save(folder)
        save_file(_flat({**outcome.models, "final": outcome.model}), str(folder / "models.safetensors"))
        (folder / "public.json").write_text(public.model_dump_json())
        secrets = {party: secret.hex() for party, secret in outcome.secrets.items()}
        (folder / "secrets.json").write_text(json.dumps(secrets))
        batches = {index: positions.tolist() for index, positions in outcome.batches.items()}
        (folder / "batches.json").write_text(json.dumps(batches))
        (folder / "summary.json").write_text(json.dumps(summary.model_dump(mode="json"), allow_nan=False))


class _Curve:
    """The test accuracy during training, at the ends of about 20 epochs and of the run."""

    POINTS = 20  # in a long training only about this many epochs are measured

    def __init__(self, public: Public, test: LabelledImages) -> None:
        self.task, self.test = task_of(public), test
        epoch = max(1, max(public.shard_sizes) // public.training.batch_size)
        self.every, self.last = epoch * max(1, public.total_rounds // epoch // self.POINTS), public.total_rounds
        self.found: dict[int, float] = {}

    def note(self, done: int, model: Callable[[], Parameters]) -> None:
        """After a round: measure if a measurement is due."""
        if len(self.test) and (done % self.every == 0 or done == self.last):
            self.found[done] = accuracy(self.task.predict(model(), self.test.images), self.test.labels)


def _progress() -> Any:
    """A function that prints a progress line to the log, ten times per training."""

    def line(done: int, total: int) -> None:
        if done % max(1, total // 10) == 0:
            print(f"round {done} of {total}", flush=True)

    return line


def _summary(job: Job, outcome: Outcome, pool: ImagePool, splits: Splits, seconds: float) -> TrainingSummary:
    task = task_of(outcome.public)
    finite = all(bool(value.isfinite().all()) for value in outcome.model.values())

    def right(indices: torch.Tensor) -> list[bool]:
        data = pool.take(indices)
        return correct(task.predict(outcome.model, data.images), data.labels).tolist() if len(data) else []

    def share(hits: list[bool]) -> float | None:
        return sum(hits) / len(hits) if hits else None

    tested = right(splits.test)

    return TrainingSummary(
        key=job.training_key,
        accuracy=share(tested),
        test_correct=hex_of(tested),
        test_records=len(splits.test),
        train_accuracy=share(right(splits.members)),
        train_records=len(splits.members),
        rounds=outcome.public.total_rounds,
        client_rounds=outcome.client_rounds,
        parameters=sum(outcome.model[name].numel() for name in task.parameter_names),
        diverged=not finite,
        observed={moment: index for index, moment in outcome.observed.items()},
        bytes_by_kind=dict(outcome.bytes_by_kind),
        claims=_claims(job, outcome.public),
        oracle=dict(outcome.ledger.uses),
        clipped_share=outcome.ledger.clipped / outcome.ledger.examples if outcome.ledger.examples else None,
        measured={name: value for name, value in outcome.ledger.worst.items() if math.isfinite(value)},
        seconds=dict(outcome.seconds),
        cpu_seconds=dict(outcome.cpu_seconds),
        extrapolated_seconds=dict(outcome.extrapolated),
        wall_seconds=seconds,
    )


def _claims(job: Job, public: Public) -> dict[str, Any]:
    """The claims of the defense; `probe` has its noise on the smallest probe batch, for which it is recalibrated."""
    defense = job.make_defense()
    size = ObservedRounds.of_record(job.training.observe).sizes[0]
    small = public.model_copy(update={"training": public.training.model_copy(update={"batch_size": size})})
    probe = {key: value for key, value in defense.claims(small).items() if key.startswith(("sigma_", "S_"))}
    found = defense.claims(public)
    return {**found, "probe": probe} if probe else found


def _flat(models: Mapping[Any, Parameters]) -> Parameters:
    return {f"{when}/{name}": value.contiguous() for when, model in models.items() for name, value in model.items()}


def load_summary(folder: Path) -> TrainingSummary:
    """The summary of a stored training."""
    return TrainingSummary.model_validate_json((folder / "summary.json").read_text())


def load_public(folder: Path) -> Public:
    """The public settings of a stored training."""
    return Public.model_validate_json((folder / "public.json").read_text())


def load_model(folder: Path, when: int | str) -> Parameters:
    """The true global model at an observed round, or `final`. Only metrics may use it."""
    prefix = f"{when}/"
    tensors = load_file(str(folder / "models.safetensors"))
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def load_batch(folder: Path, round_index: int) -> torch.Tensor | None:
    """Positions (N,) of the victim's batch of an observed round in its shard; None if it dropped out. In no view."""
    found = json.loads((folder / "batches.json").read_text()).get(str(round_index))
    return None if found is None else torch.tensor(found, dtype=torch.int64)


def open_view(
    folder: Path, threat: Threat, shards: Mapping[str, LabelledImages], probes: Container[int] | None = None
) -> View:
    """The view of a threat on a stored training; nothing outside the view is read from disk.

    With `probes`, only the probes with these numbers are read in each round. Probes of other batch sizes are other
    experiments on the same training: the result of one cell's attack must not depend on them.
    """
    secrets = json.loads((folder / "secrets.json").read_text())

    def wanted(context: RoundContext) -> bool:
        return probes is None or context.probe is None or context.probe in probes

    transcript = Transcript.load(folder, keep=limiter(threat), wanted=wanted)
    return View(
        threat.name,
        threat.parties,
        load_public(folder),
        transcript.observations,
        {party: bytes.fromhex(secrets[party]) for party in threat.parties},
        {party: shards[party] for party in threat.parties if party in shards},
    )
