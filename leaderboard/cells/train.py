"""One training: run the federation, measure it, store everything that views and scores need."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from leakboard.core.errors import UserError
from leakboard.core.files import whole_folder
from leakboard.datasets.base import ImagePool, LabelledImages
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import Splits
from leakboard.federation.device import computing_on, on_device
from leakboard.federation.observed import REPLAY_FOLDER, save_replay
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public, client_name
from leakboard.federation.snapshot import ReplaySnapshot, checked
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Transcript
from leakboard.federation.view import Threat, View, limiter, seeable
from leakboard.leaderboard.cells.accuracy_curve import AccuracyCurve, Point
from leakboard.leaderboard.cells.checkpoints import Checkpoints, remove_checkpoints
from leakboard.leaderboard.cells.training_progress import Teller, progress_file
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.public_settings import public_of, splits_of
from leakboard.leaderboard.records.record import TrainingSummary, hex_of
from leakboard.metrics.accuracy import correct


def run_training(job: Job) -> None:
    """Train, evaluate and store; the folder appears only when its contents are complete."""
    started = time.perf_counter()
    pool = load_pool(job.make_dataset())
    if pool.digest() != job.data_digest:
        raise UserError("The data changed while the run was planned: run the command again.")
    splits = splits_of(job, pool)
    public = public_of(job, pool, splits)
    curve = AccuracyCurve(public, pool.take(splits.test), job.device)
    federation = _federation(job, public, pool, splits)
    checkpoints = Checkpoints(job.training_folder, job.training_key, job.checkpoint_seconds)
    earlier = _resume(checkpoints, federation, curve)

    def seconds() -> float:
        return earlier + time.perf_counter() - started

    def notes() -> Payload:
        return {"curve": curve.notes(), "seconds": seconds()}

    progress = progress_file(job.training_folder)
    teller = Teller(progress, public.total_rounds, curve.points, resumed=federation.done)
    federation.progress = lambda done, total: teller.note(done)
    federation.after_round = curve.note
    federation.at_boundary = lambda done, take: checkpoints.note(done, take, notes)
    try:
        with computing_on(job.device):
            outcome = federation.run()
        summary = _summary(job, outcome, pool, splits, curve, seconds())
        _store(job, outcome, summary)
    finally:
        teller.end()
    remove_checkpoints(job.training_folder)


def _federation(job: Job, public: Public, pool: ImagePool, splits: Splits) -> Federation:
    fresh = job.training.keys == "fresh"
    return Federation(
        job.make_defense(),
        public,
        {client_name(index): pool.take(shard) for index, shard in enumerate(splits.shards)},
        ObservedRounds.of_record(job.training.observe),
        job.private_seed,
        fresh_keys=fresh,
        # nobody can repeat the set-up of fresh keys, and their secrets are nobody else's business
        kept=None if fresh else ReplaySnapshot(),
    )


@dataclass(frozen=True)
class Notes:
    """What a training adds to the snapshots of its federation: the accuracy curve and the seconds so far."""

    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0


_NOTES: TypeAdapter[Notes] = TypeAdapter(Notes)


def _resume(checkpoints: Checkpoints, federation: Federation, curve: AccuracyCurve) -> float:
    """Go on from the last snapshot, if there is one; the seconds that the training took until then."""
    found = [Notes()]

    def read(notes: Payload) -> None:
        found.append(checked(_NOTES, notes))

    if checkpoints.resume(federation, read):
        curve.restore(found[-1].curve)
        return found[-1].seconds
    return 0.0


def _store(job: Job, outcome: Outcome, summary: TrainingSummary) -> None:
    """Write the folder of a training."""
    with whole_folder(job.training_folder) as folder:
        transcript = Transcript(tuple(seeable(o) for o in outcome.transcript.observations))
        store_outcome(folder, outcome, transcript)
        if outcome.replay is not None:
            save_replay(folder / REPLAY_FOLDER, outcome, transcript, job.training_key, job.private_seed)
        (folder / "summary.json").write_text(json.dumps(summary.model_dump(mode="json"), allow_nan=False))


def store_outcome(folder: Path, outcome: Outcome, transcript: Transcript) -> None:
    """Write what cells read of a training beside its summary: transcript, true models, settings, secrets, batches."""
    transcript.save(folder)
    save_file(_flat({**outcome.models, "final": outcome.model}), str(folder / "models.safetensors"))
    (folder / "public.json").write_text(outcome.public.model_dump_json())
    secrets = {party: secret.hex() for party, secret in outcome.secrets.items()}
    (folder / "secrets.json").write_text(json.dumps(secrets))
    batches = {index: positions.tolist() for index, positions in outcome.batches.items()}
    (folder / "batches.json").write_text(json.dumps(batches))


def _summary(
    job: Job, outcome: Outcome, pool: ImagePool, splits: Splits, curve: AccuracyCurve, seconds: float
) -> TrainingSummary:
    task, model = task_of(outcome.public), on_device(outcome.model, job.device)
    finite = all(bool(value.isfinite().all()) for value in outcome.model.values())

    def right(indices: torch.Tensor) -> list[bool]:
        data = pool.take(indices)
        logits = task.predict(model, on_device(data.images, job.device)).cpu()
        return correct(logits, data.labels).tolist() if len(data) else []

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
        accuracy_by_round=curve.accuracies(share(tested)),
        curve_records=curve.images if curve.points else None,
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
